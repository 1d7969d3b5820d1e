"""Traces of ranks, their clocks, and the timeline made of them."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sparkdl_comm.errors import InputError, PersistenceError
from sparkdl_comm.report.timeline import Timeline
from sparkdl_comm.space.parameter_space import LayerBuckets
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.ps.bucket_transfers import BatchTrace
from sparkdl_comm.strategies.trace import Trace, estimate_offset, read_clocks


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Alone:
    def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
        return [value]


def spans(trace: Trace) -> list[dict[str, Any]]:
    report = trace.report(Alone(), timeout=1.0, parameter_bytes=8)  # type: ignore[arg-type]
    return [span for iteration in report["iterations"] for span in iteration["spans"]]


def test_the_last_iterations_are_kept() -> None:
    trace = Trace(limit=2)
    trace.add("forward", 0.0, 1.0)
    for number in (1, 2, 3):
        trace.begin_iteration(number)
        trace.add("forward", number, number + 0.5)
        trace.add("pull batch", number, number + 0.5, iteration=number + 1)
    report = trace.report(Alone(), timeout=1.0, parameter_bytes=8)  # type: ignore[arg-type]
    assert [iteration["iteration"] for iteration in report["iterations"]] == [2, 3]
    assert [(span["name"], span["begin"]) for span in spans(trace)] == [
        ("pull batch", 1),
        ("forward", 2),
        ("pull batch", 2),
        ("forward", 3),
    ], "what was for a fourth iteration is not there, for it never began"
    assert json.loads(json.dumps(report)) == report


def test_batches_are_computed_one_after_another_but_for_the_waits() -> None:
    clock = Clock()
    trace = Trace(limit=1, clock=clock)
    trace.begin_iteration(1)
    batches = BatchTrace(trace)
    cut = LayerBuckets([[1, 2], [3, 3], [4, 9]])
    batches.add_pass_span("forward batch", 1)  # no pass has begun
    batches.begin(cut)
    batches.add_pass_span("forward batch", 0)
    for batch in (1, 3):
        clock.now += 5
        batches.resume()
        clock.now += 2
        batches.add_pass_span("forward batch", batch)
    batches.add_pass_span("forward batch", 3)
    assert [(span["begin"], span["end"], span["batch"], span["layers"]) for span in spans(trace)] == [
        (5, 7, 0, [1, 2]),
        (12, 14, 2, [3, 9]),
    ]


def test_a_batch_comes_from_its_first_byte_to_its_last() -> None:
    trace = Trace(limit=1)
    trace.begin_iteration(1)
    blocks = [[1, 10.0, 12.0, 15.0, 100], [2, 11.0, 11.5, 14.0, 50]]
    BatchTrace(trace).add_arrivals("pull batch", LayerBuckets([[1, 1], [2, 4], [5, 5]]), 1, [blocks, []])
    (span,) = spans(trace)
    assert (span["begin"], span["end"], span["startup"], span["bytes"]) == (11.5, 15.0, 1.5, 150)
    assert (span["batch"], span["layers"], list(span["from"])) == (1, [2, 4], [1, 2])


def test_without_a_trace_nothing_happens() -> None:
    batches = BatchTrace(None)
    batches.begin(LayerBuckets([[1, 1]]))
    batches.add_pass_span("forward batch", 1)
    batches.add_arrivals("pull batch", LayerBuckets([[1, 1]]), 0, [[[1, 0.0, 0.0, 0.0, 1]]])


def test_a_block_that_raises_has_its_span() -> None:
    clock = Clock()
    trace = Trace(limit=1, clock=clock)
    for context in (trace.span("compress"), BatchTrace(trace).span("update batch", LayerBuckets([[1, 3]]), 0)):
        with suppress(ValueError), context:
            clock.now += 2.0
            raise ValueError
    recorded = trace._spans[0]
    assert [(span["name"], span["begin"], span["end"]) for span in recorded] == [
        ("compress", 0.0, 2.0),
        ("update batch", 2.0, 4.0),
    ]


def test_a_phase_that_raises_counts_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    trace = Trace(limit=1, clock=clock)
    watch = Stopwatch(trace)
    with watch.phase("update"):
        clock.now += 1.0
        with suppress(ValueError), watch.phase("pull"):
            clock.now += 4.0
            raise ValueError
        clock.now += 2.0
    assert (watch.seconds["pull"], watch.seconds["update"]) == (4.0, 3.0)
    assert [span["name"] for span in trace._spans[0]] == ["wait for pull", "update"]


def clocks(boot: str, sent: list[float], received: list[float]) -> dict[str, Any]:
    return {"boot": boot, "sent": sent, "received": received}


def test_clocks_of_two_machines_are_compared_by_what_they_told_each_other() -> None:
    """The other is 100 s behind. A message took 3 s one way and 1 s the other, then 1 s and 2 s."""
    own = clocks("a", [100.0, 200.0], [103.0, 202.0])
    other = clocks("b", [2.0, 100.0], [3.0, 101.0])
    ahead, wrong = estimate_offset(own, other)
    assert (ahead, wrong) == (100.0, 1.0)
    assert estimate_offset(other, own) == (-100.0, 1.0)


def test_ranks_of_one_machine_have_one_clock() -> None:
    told = read_clocks(Alone(), 1.0)  # type: ignore[arg-type]
    assert all(sent <= received for sent, received in zip(told["sent"], told["received"], strict=True))
    assert estimate_offset(told, told) == (0.0, 0.0)


def report(boot: str, ahead: float, iteration: int = 7) -> dict[str, Any]:
    """One iteration of a rank whose clock is that much ahead."""
    plain = [
        {"name": "forward", "begin": 10.0, "end": 14.0},
        {"name": "wait for pull", "begin": 11.0, "end": 12.0},
        {"name": "pull batch", "begin": 9.0, "end": 12.0, "batch": 1, "layers": [2, 3], "bytes": 8},
    ]
    moved = [{**span, "begin": span["begin"] + ahead, "end": span["end"] + ahead} for span in plain]
    told = clocks(boot, [20.0 + ahead], [21.0 + ahead])
    return {"clocks": told, "parameter_bytes": 8, "iterations": [{"iteration": iteration, "spans": moved}]}


def test_a_timeline_is_on_the_clock_of_rank_0(tmp_path: Path) -> None:
    timeline = Timeline([report("a", 0.0), report("b", 50.0)])
    assert timeline.uncertainty == 1.0
    assert timeline.iterations == [7]
    assert [(span["rank"], span["begin"], span["end"]) for span in timeline.spans if span["name"] == "forward"] == [
        (0, 1.0, 5.0),
        (1, 1.0, 5.0),
    ]
    timeline.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    begin, end = (next(e for e in events if e["ph"] == ph and e["pid"] == 1) for ph in "be")
    assert (begin["name"], begin["ts"], end["ts"], begin["id"]) == ("pull 2-3", 0.0, 3e6, end["id"])
    assert begin["args"] == {"iteration": 7, "batch": 1, "layers": [2, 3], "bytes": 8}
    (waiting,) = (e for e in events if e["name"] == "wait for pull" and e["pid"] == 0)
    assert (waiting["ph"], waiting["ts"], waiting["dur"]) == ("X", 2e6, 1e6)
    with pytest.raises(PersistenceError, match="nowhere"):
        timeline.save(tmp_path / "nowhere" / "trace.json")


def test_an_iteration_is_drawn(tmp_path: Path) -> None:
    timeline = Timeline([report("a", 0.0), report("a", 0.0)])
    figure = timeline.plot(ranks=(0, 1))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0: pull",
        "worker",
        "rank 1: pull",
        "worker",
    ]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["forward", "wait for pull"]
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    for settings, problem in (
        ({"iteration": 6}, r"iteration=6\. rank 0 has iterations 7 to 7"),
        ({"ranks": [2]}, "there are ranks 0 to 1"),
        ({"ranks": []}, "Name at least one"),
    ):
        with pytest.raises(InputError, match=problem):
            timeline.plot(**settings)  # type: ignore[arg-type]


def test_ranks_of_the_fabric_have_iterations_of_their_own() -> None:
    slow, fast = report("a", 0.0, 7), report("a", 0.0, 8)
    fast["iterations"] = [*report("a", -9.0)["iterations"], *fast["iterations"]]
    timeline = Timeline([slow, fast])
    assert timeline.iterations == [7, 8]
    assert timeline.plot().get_suptitle().startswith("Iteration 7")
    assert timeline.plot(ranks=[1]).get_suptitle().startswith("Iteration 8")
    assert timeline.plot(ranks=[0, 1]).get_suptitle().startswith("Iteration 7")
    with pytest.raises(InputError, match=r"iteration=8\. rank 0 has iterations 7 to 7"):
        timeline.plot(8)
    apart = Timeline([report("a", 0.0, 7), report("a", 0.0, 8)])
    with pytest.raises(
        InputError, match=r"no iteration was traced on all of them\. rank 0 .* rank 1 has iterations 8 to 8"
    ):
        apart.plot(ranks=[0, 1])
    silent = {**report("a", 0.0), "iterations": []}
    with pytest.raises(InputError, match="rank 0 has none"):
        Timeline([silent, report("a", 0.0)]).plot()
