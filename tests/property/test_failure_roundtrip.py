from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.gang.failure import MAX_JSON, Failure

texts = (
    st.text()
    | st.text(alphabet=st.characters(exclude_categories=()))  # lone surrogates too
    | st.sampled_from(["\x00", "\\", "\U0001f600"]).map(lambda char: char * 60_000)
)
failures = st.builds(
    Failure,
    rank=st.integers(0, 2**31 - 1),
    step=st.none() | st.integers(0, 2**31 - 1),
    phase=texts,
    error=texts,
    message=texts,
    traceback=texts,
    secondary=st.booleans(),
)


@given(failures)
def test_json_round_trip_on_one_bounded_ascii_line(failure: Failure) -> None:
    text = failure.to_json()
    assert len(text) <= MAX_JSON
    assert text.isascii()
    assert text.isprintable()
    assert Failure.from_json(text) == failure


@given(failures, st.text(), st.text())
def test_found_in_any_text(failure: Failure, before: str, after: str) -> None:
    assert Failure.find(f"{before}{failure.embed()}\n{after}") == failure


@given(failures)
def test_exception_round_trip(failure: Failure) -> None:
    again = Failure.of(failure.to_exception(), rank=0)
    assert (again.rank, again.step, again.error, again.message, again.traceback) == (
        failure.rank,
        failure.step,
        failure.error,
        failure.message,
        failure.traceback,
    )


@given(st.text())
def test_find_never_raises(text: str) -> None:
    assert Failure.find(text) is None
    assert Failure.find("SPARKDL-FAILURE {" + text) is None
