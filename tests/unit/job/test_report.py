"""Merging what the ranks report."""

import dataclasses
import json

import pytest

from sparkdl_comm.data.named_cache import NO_NAME
from sparkdl_comm.errors import GangError
from sparkdl_comm.job.summary import RankReport, Summary, describe_kept, summarize

HISTORY = [
    [{"epoch": epoch, "step": 5 * epoch, "loss": loss, "lr": 0.1, "seconds": 2.0 + rank} for epoch, loss in losses]
    for rank, losses in enumerate([[(1, 0.5), (2, 0.25)], [(1, 0.5), (2, 0.5)]])
]
ZERO = RankReport(0, 10, 5.0, {"forward": 2.0, "pull": 1.0}, {"pull": 100, "push": 50}, HISTORY[0], 7, "ab")
ONE = RankReport(1, 10, 4.0, {"forward": 4.0, "pull": 1.0}, {"pull": 200, "push": 50}, HISTORY[1], 5, "ab", [10])


def test_where_the_rows_were() -> None:
    data = {"cache": "memory", "bytes": 0, "held": 0, "seconds": 1.5, "reused": False}
    there = {**data, "cache": "disk", "bytes": 7, "held": 3, "seconds": 0.5}
    reports = [dataclasses.replace(report, data=each) for report, each in ((ZERO, data), (ONE, there))]
    told = summarize(reports, "ps", 2)["data"]
    assert told == {"cache": "disk", "bytes": 7, "held": 3, "seconds": 1.5, "reused": False}


def test_why_a_named_cache_was_not_used_is_printed() -> None:
    data = {"cache": "disk", "bytes": 7, "held": 3, "seconds": 0.5, "reused": False}

    def line(why: str) -> str:
        reports = [dataclasses.replace(report, data={**data, "why_read": why}) for report in (ZERO, ONE)]
        return next(line for line in str(summarize(reports, "ps", 2)).splitlines() if "rows on disk" in line)

    assert line(NO_NAME) == "12 rows on disk, read in 0.5 s"
    assert line("the cache clicks is not complete") == (
        "12 rows on disk, read in 0.5 s, because the cache clicks is not complete"
    )


def test_time_per_iteration_is_of_those_since_the_checkpoint() -> None:
    reports = [dataclasses.replace(report, resumed_at=5) for report in (ZERO, ONE)]
    summary = summarize(reports, "ps", 2)
    assert (summary["iterations"], summary["resumed_at"], summary["seconds_per_iteration"]) == (10, 5, 1.0)


def test_summary() -> None:
    reports = [RankReport.from_json(report.to_json()) for report in (ONE, ZERO)]
    assert reports == [ONE, ZERO]
    summary = summarize(reports, "ps", 2)
    assert summary == {
        "strategy": "ps",
        "world": 2,
        "iterations": 10,
        "resumed_at": 0,
        "seconds_per_iteration": 0.5,
        "iterations_per_second": 2.0,
        "samples_per_second": 4.8,
        "phases": {"forward": pytest.approx(0.3), "pull": pytest.approx(0.1)},
        "bytes": {"pull": 300, "push": 100},
        "rows": 12,
        "history": [
            {"epoch": 1, "step": 5, "loss": 1.0, "lr": 0.1, "seconds": 2.0},
            {"epoch": 2, "step": 10, "loss": 0.75, "lr": 0.1, "seconds": 2.0},
        ],
        "restarts": 0,
    }
    assert json.loads(json.dumps(summary)) == summary


def test_a_summary_reads_as_five_lines() -> None:
    data = {"cache": "disk", "bytes": 7, "held": 3, "seconds": 1.5, "reused": False}
    details = {"batching": {"pull": {"kept": "plan, 7 pulls"}, "push": {"kept": "plan, 19 pushes"}}}
    reports = [dataclasses.replace(report, data=data, details=details) for report in (ZERO, ONE)]
    summary = summarize(reports, "ps", 2)
    assert str(summary).splitlines() == [
        "ps (plan, 7 pulls, 19 pushes), 2 ranks: 10 steps of 500 ms, 5 samples/s",
        "time of a step: forward 75 %, pull 25 %",
        "received in a step, all ranks: 3e-05 MB pull, 1e-05 MB push",
        "12 rows on disk, read in 1.5 s",
        "epoch 2: loss 0.75, lr 0.1",
    ]
    assert summary.line() == (
        "ps (plan, 7 pulls, 19 pushes), 2 ranks: 10 steps of 500 ms, 5 samples/s; time of a step: forward 75 %, pull 25 %"
    )
    assert str(Summary({"strategy": "ring", "world": 2, "iterations": 0})) == "ring, 2 ranks: 0 steps of 0 ms"


def test_what_both_directions_kept() -> None:
    assert describe_kept("layerwise", "layerwise") == "layerwise"
    assert describe_kept("plan, 2 pulls, one per layer", "plan, 1 push") == "plan, 2 pulls, one per layer, 1 push"
    assert describe_kept("trial of plan, 7 pulls", "trial of plan, 3 pushes") == "trial of plan, 7 pulls, 3 pushes"
    assert describe_kept("whole", "plan, 3 pushes") == "whole, 3 pushes"
    assert describe_kept("plan, 2 pulls", "whole") == "plan, 2 pulls; pushes whole"


def test_different_weights() -> None:
    with pytest.raises(GangError, match="different weights.*rank 1: cd"):
        summarize([ZERO, dataclasses.replace(ONE, weights_sha256="cd")], "ps", 2)


def test_missing_rank() -> None:
    with pytest.raises(GangError, match="3 ranks were started"):
        summarize([ZERO, ONE], "ps", 3)
