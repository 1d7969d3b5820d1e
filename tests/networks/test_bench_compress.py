"""bench_compress on an emulated network: sums of gradients, sparse and dense."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_comm.lab.results import FIELDS

PROGRAM = Path(__file__).parents[2] / "python" / "bench_compress.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--quick", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_every_algorithm_gives_a_row_that_is_right() -> None:
    done = bench("--topology", "hosts:2x2")
    assert done.returncode == 0, done.stderr
    rows = {row["algorithm"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["hitopk", "naive-ag", "tree-ar", "torus2d"]
    for row in rows.values():
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
        assert (row["world"], row["topology"], row["count"]) == (4, "hosts:2x2", 1 << 18)
    assert rows["hitopk"]["theory_seconds"] < rows["naive-ag"]["theory_seconds"] < rows["torus2d"]["theory_seconds"]
    assert {"select_seconds", "gather_between_seconds"} <= rows["hitopk"].keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topology", "bcube:2,2"], "one NIC each"),
        (["--topology", "ring:3"], "ring:3"),
        (["--topology", "star:3", "--algorithms", "hitopk,best"], "--algorithms best: there are hitopk"),
        (["--topology", "star:3", "--density", "2"], "--density 2: must be above 0"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: list[str], said: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
