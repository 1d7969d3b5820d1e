"""The core of the benchmarks: statistics, rows, table, exit status."""

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.arguments import STDOUT
from lab.bench import Report, Row, allreduce_seconds, broadcast_seconds, measure, versions
from lab.results import FIELDS, Origin, read

from sparkdl_comm.errors import InputError, LabError, LabUnavailableError


def row(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "suite": "peers",
        "case": "allreduce",
        "algorithm": "ring",
        "topology": "star:9",
        "rate_mbit": 200.0,
        "world": 9,
        "bytes": 1 << 20,
        "samples": [3.0, 1.0, 1.5],
        "theory_seconds": 1.2,
        "verified": True,
        "versions": {"torch": "2"},
    }
    return Row(**{**values, **changes})


def test_statistics() -> None:
    made = row()
    assert (made.seconds, made.spread, made.ratio) == (1.5, 2.0, pytest.approx(1.25))
    assert row(theory_seconds=None).ratio is None


def test_theory() -> None:
    # 4 ranks, 1 MB, 8 Mbit/s = 1 MB/s: each sends 2 x 3/4 MB
    assert allreduce_seconds(4, 10**6, 8.0) == pytest.approx(1.5)
    assert broadcast_seconds(10**6, 8.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": []}, "at least one"),
        ({"samples": [1.0, 0.0]}, "positive"),
        ({"samples": [1.0, float("nan")]}, "positive"),
        ({"theory_seconds": 0.0}, "theory"),
        ({"extra": {"bytes": 3}}, "'bytes'"),
    ],
)
def test_bad_rows(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        row(**changes)


def test_measure_takes_turns_and_leaves_the_warm_up_out() -> None:
    calls: list[str] = []

    def case(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = measure({"a": lambda: case("a"), "b": lambda: case("b")}, warmup=1, repeats=2)
    assert calls == ["a", "b"] * 3
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_json_has_the_fields_in_order_and_then_the_extra_ones() -> None:
    out, err = io.StringIO(), io.StringIO()
    report = Report(json_to=STDOUT, out=out, err=err)
    report.add(row(extra={"phases": {"push": 0.5}}))
    assert report.finish() == 0
    (parsed,) = json.loads(out.getvalue())
    assert tuple(parsed) == (*FIELDS, "phases")
    assert (parsed["seconds"], parsed["compute"]) == (1.5, "real")
    assert "star:9" in err.getvalue()


def test_table_aligns_and_goes_to_standard_output_without_json() -> None:
    out, err = io.StringIO(), io.StringIO()
    report = Report(json_to=None, out=out, err=err)
    report.add(row())
    report.add(row(case="broadcast", theory_seconds=None, rate_mbit=None))
    assert report.finish() == 0
    header, first, second = out.getvalue().splitlines()
    assert header.index("algorithm") == first.index("ring") == second.index("ring")
    assert first.split()[-2:] == ["1.25", "ok"]
    assert second.split()[-3:] == ["-", "-", "ok"]
    assert not err.getvalue()


def test_what_is_not_verified_fails_and_is_named() -> None:
    out, err = io.StringIO(), io.StringIO()
    report = Report(json_to=STDOUT, out=out, err=err)
    report.add(row())
    report.add(row(algorithm="tree", verified=False))
    assert report.finish() == 1
    assert [parsed["verified"] for parsed in json.loads(out.getvalue())] == [True, False]
    assert "not verified: allreduce tree" in err.getvalue()


def test_a_file_gets_rows_with_every_sample_and_where_they_come_from(tmp_path: Path) -> None:
    out, file = io.StringIO(), tmp_path / "ring.json"
    report = Report(json_to=str(file), out=out, err=io.StringIO())
    report.add(row())
    assert report.finish() == 0
    assert "star:9" in out.getvalue()
    results = read(file)
    assert list(results.rows) == report.rows
    assert results.rows[0].samples == [3.0, 1.0, 1.5]
    assert results.origin.cores >= 1
    assert results.origin.versions["python"] == versions()["python"]


@pytest.mark.parametrize(("commit", "dirty", "warned"), [("a", False, False), ("a", True, True), (None, None, True)])
def test_it_is_said_at_once_that_tables_will_refuse_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None, dirty: bool | None, warned: bool
) -> None:
    origin, err = dataclasses.replace(Origin.here(), commit=commit, dirty=dirty), io.StringIO()
    monkeypatch.setattr(Origin, "here", lambda: origin)
    Report(json_to=str(tmp_path / "a.json"), err=err)
    assert ("tables of pages will refuse this file" in err.getvalue()) == warned


def test_nothing_measured_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    assert Report(json_to=str(file), out=io.StringIO(), err=io.StringIO()).finish() == 1
    assert not file.exists()


@pytest.mark.parametrize(
    ("error", "status", "said", "kept"),
    [
        (LabUnavailableError("no tc"), 0, "skipped: no tc", False),
        (LabError("a link is gone"), 1, "failed: a link is gone", True),
    ],
)
def test_an_error_ends_the_rows(error: LabError, status: int, said: str, kept: bool) -> None:
    def rows() -> Iterator[Row]:
        yield row()
        raise error

    out, err = io.StringIO(), io.StringIO()
    assert Report(json_to=STDOUT, out=out, err=err).finish_after(rows()) == status
    assert said in err.getvalue().splitlines()
    assert bool(out.getvalue()) == kept


@pytest.mark.parametrize("verified", [True, False])
def test_rows_that_end_without_an_error(verified: bool) -> None:
    out = io.StringIO()
    report = Report(json_to=STDOUT, out=out, err=io.StringIO())
    assert report.finish_after([row(), row(verified=verified)]) == int(not verified)
    assert [parsed["verified"] for parsed in json.loads(out.getvalue())] == [True, verified]


def test_nothing_measured_fails() -> None:
    assert Report(json_to=None, out=io.StringIO(), err=io.StringIO()).finish() == 1


def test_versions_leave_out_what_is_not_installed() -> None:
    found = versions(["torch", "no-such-distribution"])
    assert {"python", "linux", "torch"} == set(found)
