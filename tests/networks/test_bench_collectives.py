"""bench_collectives on an emulated network: what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import bench_collectives
import pytest

from sparkdl_comm.lab.results import FIELDS

PROGRAM = Path(__file__).parents[2] / "python" / "bench_collectives.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--quick", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_own_collectives_beside_gloo(networks):
    done = bench("--topology", "bcube:2,2", "--algorithms", "lp", "--peers", "gloo", "--calls", "2")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
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


def test_all_operations_on_loopback():
    done = bench(
        "--topology", "star:2", "--loopback", "--algorithms", "lp,mst", "--operations", "all_reduce,broadcast,reduce"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["case"] for row in rows} == {"allreduce", "broadcast", "reduce"}
    assert all(row["verified"] and row["theory_seconds"] is None for row in rows)


def test_algorithms_that_do_not_fit_are_refused(refused):
    said = refused(bench_collectives.main, "--topology", "bcube:2,2", "--algorithms", "mst")
    assert "mst: bcube:2,2 fits bml, lp, ring" in said
