"""python/bench_fabric.py verifies what it times."""

from dataclasses import replace

import bench_fabric
import numpy as np
import pytest
from lab.results import FIELDS
from scheduled import batches

from sparkdl_comm.fabric.core.decisions import DroppedUpdate, Push


def test_a_row_for_each_size_and_kind_of_rates(rows_of):
    rows = rows_of(bench_fabric, "--scheduler", "10,40")
    assert [(row["updates"], row["case"]) for row in rows] == [
        (updates, case) for updates in (10, 40) for case in ("schedule-even", "schedule-drawn")
    ]
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
        assert row["seconds"] > 0
    assert [row["paper_seconds"] for row in rows] == [0.005, 0.005, None, None]


def test_a_row_for_each_setting_and_system(rows_of):
    arguments = ["--workers", "4", "--settings", "C2-N1", "--systems", "fabric-8,ring,async", "--accuracy", "0.5"]
    rows = rows_of(bench_fabric, "--simulate", *arguments)
    assert [(row["setting"], row["system"]) for row in rows] == [
        ("C2-N1", system) for system in ("fabric-8", "ring", "async")
    ]
    for row in rows:
        assert row["verified"]
        assert row["accuracy"] >= 0.5
        assert row["seconds_to_accuracy"] == row["seconds"]
    assert rows[0]["max_delay"] <= 8
    assert rows[0]["paper_speedup"] == 2.96
    assert rows[0]["speedup_over_ring"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"])


def test_a_row_for_each_lag_and_each_bound_of_the_replica(rows_of):
    arguments = ["--workers", "4", "--settings", "C2-N1", "--systems", "fabric-8,async", "--accuracy", "0.5"]
    rows = rows_of(bench_fabric, "--simulate", *arguments, "--lag", "0.2,1", "--divergence", "5,50")
    told = [(row["system"], row.get("lag"), row.get("divergence"), row["topology"]) for row in rows]
    fabric = [("fabric-8", lag, divergence, "star:6") for lag in (0.2, 1.0) for divergence in (5.0, 50.0)]
    assert told == [*fabric, ("async", None, None, "star:5")]
    assert all(row["verified"] for row in rows)
    assert all(0 <= row["replicated"] <= row["bytes"] and row["norm"] > 0 for row in rows[:4])
    # With a bound of 50 this run may end before the replica is due anything.
    assert all(tight["replicated"] > loose["replicated"] for tight, loose in (rows[:2], rows[2:4]))


def test_the_time_that_so_many_updates_take(rows_of):
    arguments = ["--workers", "4", "--settings", "C0-N0", "--systems", "ring"]
    [row] = rows_of(bench_fabric, "--simulate", *arguments, "--updates", "40", "--bytes", "100000000")
    assert row["updates"] == 40
    assert row["seconds"] == pytest.approx(10 * (0.1 + 2 * 3 / 4 * 1e8 / 1.25e9))


@pytest.mark.parametrize("case", ["even", "drawn"])
def test_a_schedule_that_was_tampered_with_is_not_verified(case):
    batch = batches.drawn(30, case, np.random.default_rng(5))
    decisions = batches.decided(batch).decisions
    assert batches.right(batch, decisions)
    first = next(decision for decision in decisions if isinstance(decision, Push) and decision.schedule)
    rest = [decision for decision in decisions if decision is not first]
    piece = first.schedule[0]
    faster = piece._replace(rate=piece.rate * 1.1, end=piece.start + (piece.end - piece.start) / 1.1)
    assert not batches.right(batch, rest), "an update that nobody decided on"
    assert not batches.right(batch, [*decisions, DroppedUpdate(0, 0, "deadline")]), "one that is both sent and dropped"
    assert not batches.right(batch, [replace(first, schedule=()), *rest]), "bytes that are not sent"
    assert not batches.right(batch, [replace(first, schedule=(faster, *first.schedule[1:])), *rest]), (
        "too fast for a link"
    )
    late = batch._replace(deadlines=[0] * 30)
    assert not batches.right(late, decisions), "deadlines that were missed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of --scheduler, --simulate, --train and --lda"),
        (["--scheduler", "10", "--simulate"], "one of --scheduler, --simulate, --train and --lda"),
        (["--scheduler", "0"], "--scheduler: must be whole numbers, at least 1"),
        (["--simulate", "--settings", "C7-N1"], "--settings C7-N1"),
        (["--simulate", "--systems", "gloo"], "gloo: there are"),
        (["--simulate", "--systems", "fabric-0"], "fabric-TAU='async:0'"),
    ],
)
def test_options_that_make_no_sense_are_refused(refused, arguments, said):
    assert said in refused(bench_fabric.main, *arguments)
