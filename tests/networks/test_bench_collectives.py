"""bench_collectives on an emulated network: what it prints."""

import bench_collectives
import pytest

from sparkdl_comm.lab.results import FIELDS


@pytest.mark.slow
def test_own_collectives_beside_gloo(networks, rows_of):
    rows = rows_of(
        bench_collectives, "--topology", "bcube:2,2", "--algorithms", "lp", "--peers", "gloo", "--calls", "2"
    )
    assert [(row["algorithm"], row["topology"], row["case"]) for row in rows] == [
        ("lp", "bcube:2,2", "allreduce"),
        ("gloo", "star:4", "allreduce"),
        ("gloo", "star:4", "broadcast"),
    ]
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
    lp, gloo, _ = rows
    # Two rails: half of what one allows.
    assert lp["theory_seconds"] == pytest.approx(gloo["theory_seconds"] / 2)
    assert lp["predicted"] >= lp["theory_seconds"]
    assert lp["block"] > 0
    assert lp["calls"] == 2


def test_all_operations_on_loopback(rows_of):
    operations = "all_reduce,broadcast,reduce"
    rows = rows_of(
        bench_collectives, "--topology", "star:2", "--loopback", "--algorithms", "lp,mst", "--operations", operations
    )
    assert {row["case"] for row in rows} == {"allreduce", "broadcast", "reduce"}
    assert all(row["verified"] and row["theory_seconds"] is None for row in rows)


def test_algorithms_that_do_not_fit_are_refused(refused):
    said = refused(bench_collectives.main, "--topology", "bcube:2,2", "--algorithms", "mst")
    assert "mst: bcube:2,2 fits bml, lp, ring" in said
