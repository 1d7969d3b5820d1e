"""Where benchmarks say that the time of an iteration goes."""

from __future__ import annotations

from typing import Any

from benchmarks.breakdown import PARTS, mean, of_iteration, overlapped
from hypothesis import given
from hypothesis import strategies as st


def span(name: str, begin: float, end: float) -> dict[str, Any]:
    return {"name": name, "begin": begin, "end": end}


def test_what_backward_hides_does_not_count() -> None:
    spans = [
        span("forward", 0, 2),
        span("backward", 2, 6),
        span("compress", 3, 4),
        span("compress", 5.5, 7),
        span("wait for push", 6, 10),
        span("compress", 9, 9.5),
        span("update", 10, 11),
    ]
    assert of_iteration(spans) == {"computing": 6, "compression": 1.5, "communication": 2.5, "update": 1}


def test_what_forward_waits_for_and_what_backward_updates_is_no_computing() -> None:
    spans = [
        span("wait for pull", 1, 2),
        span("forward", 0, 4),
        span("update", 5, 6),
        span("backward", 4, 9),
        span("wait for push", 9, 10),
        span("update", 10, 12),
    ]
    assert of_iteration(spans) == {"computing": 7, "compression": 0, "communication": 2, "update": 3}


@given(st.lists(st.integers(1, 100), min_size=9, max_size=9))
def test_parts_add_up_to_the_iteration(lengths: list[int]) -> None:
    """Whatever is hidden: of spans that the worker has one after the other, with compression across their bounds."""
    ends = [sum(lengths[: number + 1]) for number in range(4)]
    names = ("forward", "backward", "wait for push", "update")
    spans = [span(name, begin, end) for name, begin, end in zip(names, [0, *ends[:-1]], ends, strict=True)]
    compressing = [sum(lengths[4 : 5 + number]) for number in range(4)]
    spans += [span("compress", *compressing[:2]), span("compress", *compressing[2:])]
    parts = of_iteration(spans)
    assert sum(parts.values()) == ends[-1]
    assert min(parts.values()) >= 0


def test_what_comes_while_a_rank_computes_overlaps_and_what_it_waits_for_does_not() -> None:
    spans = [
        span("pull batch", 0, 3),
        span("pull batch", 2, 5),
        span("forward", 1, 7),
        span("wait for pull", 1, 2.5),
        span("wait for pull", 4, 4.5),
        span("backward", 7, 9),
        span("push batch", 8, 12),
        span("wait for push", 9, 11),
        span("update", 11, 13),
    ]
    # In forward 2.5 to 4 and 4.5 to 5, in backward 8 to 9, beside the update 11 to 12.
    assert overlapped(spans) == 1.5 + 0.5 + 1 + 1
    assert overlapped([each for each in spans if "batch" not in each["name"]]) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["forward", "update", "wait for pull", "pull batch"]), st.integers(0, 20), st.integers(1, 9)
        )
    )
)
def test_what_overlaps_second_by_second(drawn: list[tuple[str, int, int]]) -> None:
    spans = [span(name, begin, begin + length) for name, begin, length in drawn]

    def on(second: int, *names: str) -> bool:
        return any(one["begin"] <= second < one["end"] for one in spans if one["name"] in names)

    beside = [s for s in range(30) if on(s, "forward", "update") and on(s, "pull batch") and not on(s, "wait for pull")]
    assert overlapped(spans) == len(beside)


def test_the_mean_is_of_each_part() -> None:
    assert mean([dict.fromkeys(PARTS, 1.0), dict.fromkeys(PARTS, 2.0)]) == dict.fromkeys(PARTS, 1.5)
