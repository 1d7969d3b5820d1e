"""Benchmarks without emulated networks: ``--quick`` prints rows, all of which are verified (see the fixture ``rows_of``)."""

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.fetch.run import on_this_machine

from sparkdl_comm.compress.selection import OPERATORS

Rows = Callable[..., list[dict[str, Any]]]


@pytest.mark.slow
def test_fabric_scheduler(rows_of: Rows) -> None:
    rows = rows_of("fabric", "--scheduler", "10,40")
    assert [(row["updates"], row["case"]) for row in rows] == [
        (updates, case) for updates in (10, 40) for case in ("schedule-even", "schedule-drawn")
    ]
    for row in rows:
        assert row["seconds"] > 0
    assert [row["paper_seconds"] for row in rows] == [0.005, 0.005, None, None]


@pytest.mark.slow
def test_fabric_simulation(rows_of: Rows) -> None:
    arguments = ["--workers", "4", "--settings", "C2-N1", "--systems", "fabric-8,ring,async", "--accuracy", "0.5"]
    rows = rows_of("fabric", "--simulate", *arguments)
    assert [(row["case"], row["algorithm"]) for row in rows] == [
        ("C2-N1", system) for system in ("fabric-8", "ring", "async")
    ]
    for row in rows:
        assert row["accuracy"] >= 0.5
    assert rows[0]["max_delay"] <= 8
    assert rows[0]["paper_speedup"] == 2.96


@pytest.mark.slow
def test_fabric_simulation_of_lags_and_replicas(rows_of: Rows) -> None:
    arguments = ["--workers", "4", "--settings", "C2-N1", "--systems", "fabric-8,async", "--accuracy", "0.5"]
    rows = rows_of("fabric", "--simulate", *arguments, "--lag", "0.2,1", "--divergence", "5,50")
    told = [(row["algorithm"], row.get("lag"), row.get("divergence"), row["topology"]) for row in rows]
    fabric = [("fabric-8", lag, divergence, "star:6") for lag in (0.2, 1.0) for divergence in (5.0, 50.0)]
    assert told == [*fabric, ("async", None, None, "star:5")]
    assert all(0 <= row["replicated"] <= row["bytes"] and row["norm"] > 0 for row in rows[:4])
    # With a bound of 50 this run may end before the replica is due anything.
    assert all(tight["replicated"] > loose["replicated"] for tight, loose in (rows[:2], rows[2:4]))


@pytest.mark.slow
def test_fabric_simulation_of_so_many_updates(rows_of: Rows) -> None:
    arguments = ["--workers", "4", "--settings", "C0-N0", "--systems", "ring"]
    [row] = rows_of("fabric", "--simulate", *arguments, "--updates", "40", "--bytes", "100000000")
    assert row["updates"] == 40
    assert row["seconds"] == pytest.approx(10 * (0.1 + 2 * 3 / 4 * 1e8 / 1.25e9))


@pytest.mark.slow
def test_fetch(spark):
    rows = on_this_machine(spark, 3, [1000, 3_000_000], 2)
    assert all(row.verified for row in rows)
    assert all(len(row.samples) == 2 for row in rows)
    ways = {(row.algorithm, row.bytes) for row in rows}
    assert ways >= {("notice", 0), ("notice", 1000), ("fetchBlockSync", 1000), ("fetch", 3_000_000)}
    assert ways >= {("at once", 6_000_000), ("in turn", 6_000_000)}
    assert ("notice", 3_000_000) not in ways
    assert ways >= {("same host", 1000), ("memcpy", 3_000_000), ("bf16 encode", 1000), ("fp16 decode", 3_000_000)}


@pytest.mark.slow
def test_fetch_by_fixed_windows(spark):
    found = on_this_machine(spark, 3, [3_000_000], 2, [1 << 16, 1 << 20])
    assert [row.algorithm for row in found] == ["own", "fixed 65536", "fixed 1048576"]
    assert all(row.verified and row.bytes == 6_000_000 for row in found)


@pytest.mark.slow
def test_pto(rows_of: Rows) -> None:
    rows = rows_of("compression/pto", "--topology", "star:2", "--loopback")
    dealt = ["pto-gang", "pto-ring"]
    assert [(row["case"], row["algorithm"]) for row in rows] == [
        *(("lars", way) for way in ["local", *dealt]),
        *(("norms", way) for way in ["local", *dealt]),
        *(("gather", way) for way in dealt),
    ]
    assert rows[-1]["bytes"] == 161 * 2 * 8


@pytest.mark.slow
def test_validation(rows_of: Rows) -> None:
    rows = rows_of("scale", "--validate")
    assert {row["case"] for row in rows} == {"collectives", "exchanges", "steps", "loops", "server", "fabric"}
    for row in rows:
        assert row["error"] == pytest.approx(row["seconds"] / row["measured"] - 1)


@pytest.mark.slow
def test_figures(rows_of: Rows) -> None:
    rows = rows_of("scale", "--scale")
    assert {row["case"] for row in rows} == {
        *("fig5", "broadcast", "reduce", "all_reduce", "commlib", "ibatch", "greedy"),
    }
    bml = next(row for row in rows if row["case"] == "fig5" and row["algorithm"] == "bml")
    assert (bml["topology"], bml["simulated"]) == ("bcube:4,2", 1)
    assert bml["links"] > bml["formula"] == 0.9375
    batched = {row["algorithm"]: row for row in rows if row["case"] == "ibatch"}
    assert batched["whole"]["split"]["overlapping"] == 0
    split = batched["paper"]["split"]
    told = split["overlapping"] + split["communication"] + split["computation"]
    assert told == pytest.approx(batched["paper"]["seconds"])
    assert batched["both ways"]["seconds"] < batched["paper"]["seconds"] < batched["whole"]["seconds"]


@pytest.mark.slow
def test_size(rows_of: Rows) -> None:
    rows = rows_of("scale/size")
    assert {(row["case"], row["algorithm"]) for row in rows} == {
        ("rendezvous", "driver"),
        *((case, rank) for case in ("join", "gather") for rank in ("rank 0", "rank 1")),
    }
    for row in rows:
        assert row["bytes"] > 0
    driver = {row["world"]: row for row in rows if row["algorithm"] == "driver"}
    assert driver[8]["messages"] == 2 * driver[4]["messages"], "three for each rank"


@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # sets SPARK_HOME to a copy that executors may write to, and the Python to use
def test_transform(rows_of: Rows) -> None:
    rows = rows_of("transform")
    ways = ["pandas_udf", "pandas_udf chunks", "transform", "pandas_udf all", "transform all"]
    assert [(row["case"], row["algorithm"]) for row in rows] == [(c, way) for c in ("lenet", "tabular") for way in ways]


@pytest.mark.slow
def test_compression(rows_of: Rows) -> None:
    rows = rows_of("compression", "--density", "0.01")
    assert [(row["case"], row["algorithm"]) for row in rows] == [
        (distribution, name) for distribution in ("gaussian", "gradient-like") for name in OPERATORS
    ]
    for row in rows:
        assert (row["suite"], row["count"], row["bytes"]) == ("compress", 1 << 18, 1 << 20)
        assert (row["density"], row["device"]) == (0.01, "cpu")
        assert row["theory_seconds"] > 0


@pytest.mark.slow
def test_compression_by_one_operator(rows_of: Rows) -> None:
    assert {row["algorithm"] for row in rows_of("compression", "--operators", "exact")} == {"exact"}


@pytest.mark.slow
def test_collectives_on_loopback(rows_of: Rows) -> None:
    operations = "all_reduce,broadcast,reduce"
    rows = rows_of(
        "collectives", "--topology", "star:2", "--loopback", "--algorithms", "lp,mst", "--operations", operations
    )
    assert {row["case"] for row in rows} == {"allreduce", "broadcast", "reduce"}
    assert all(row["verified"] and row["theory_seconds"] is None for row in rows)
