"""bench_collectives on an emulated network: what it prints."""

import bench_collectives
import pytest
from lab.results import FIELDS


@pytest.mark.slow
def test_own_collectives_beside_gloo(networks, rows_of):
    rows = rows_of(
        bench_collectives, "--topology", "bcube:2,2", "--algorithms", "lp", "--peers", "gloo", "--calls", "2"
    )
    assert [(row["algorithm"], row["topology"], row["case"]) for row in rows] == [
        ("lp", "bcube:2,2", "allreduce"),
        ("gloo", "star:4", "allreduce"),
    ]
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
    lp, gloo = rows
    # Two rails: half of what one allows.
    assert lp["theory_seconds"] == pytest.approx(gloo["theory_seconds"] / 2)
    assert lp["predicted"] >= lp["theory_seconds"]
    assert lp["block"] > 0
    assert lp["best"]
    assert lp["calls"] == 2


@pytest.mark.slow
def test_several_topologies_and_blocks_on_rails_that_differ(networks, rows_of):
    words = ["--topology", "bcube:2,2", "bcube:3,2", "--rate", "100,200", "--algorithms", "bml", "--block", "0,4096"]
    rows = rows_of(bench_collectives, *words)
    assert [(row["topology"], row["best"]) for row in rows] == [
        (topology, best) for topology in ("bcube:2,2", "bcube:3,2") for best in (True, False)
    ]
    for row in rows:
        assert row["verified"]
        assert row["rates"] == [100, 200]
        # Both rails together.
        hosts = row["world"]
        assert row["theory_seconds"] == pytest.approx(2 * (hosts - 1) / hosts * row["bytes"] * 8 / 300e6)


def test_all_operations_on_loopback(rows_of):
    operations = "all_reduce,broadcast,reduce"
    rows = rows_of(
        bench_collectives, "--topology", "star:2", "--loopback", "--algorithms", "lp,mst", "--operations", operations
    )
    assert {row["case"] for row in rows} == {"allreduce", "broadcast", "reduce"}
    assert all(row["verified"] and row["theory_seconds"] is None for row in rows)


@pytest.mark.slow
def test_reductions_of_peers(networks, rows_of):
    words = ["--topology", "star:3", "--algorithms", "lp", "--operations", "reduce", "--peers", "gloo"]
    lp, gloo = rows_of(bench_collectives, *words)
    assert lp["case"] == gloo["case"] == "reduce"
    assert lp["theory_seconds"] == gloo["theory_seconds"]
    assert lp["verified"]
    assert gloo["verified"]


def test_a_rate_for_each_rail_is_needed(refused):
    said = refused(bench_collectives.main, "--topology", "star:2", "--rate", "100,200")
    assert "--rate: star:2 has 1 rails" in said


def test_algorithms_that_do_not_fit_are_refused(refused):
    said = refused(bench_collectives.main, "--topology", "bcube:2,2", "--algorithms", "mst")
    assert "mst: bcube:2,2 fits bml, lp, ring" in said
