"""python/bench_pto.py verifies what it times."""

import json
import math
import subprocess
import sys
from pathlib import Path

import bench_pto
import pytest
from peers.resnet import resnet50

from sparkdl_comm.lab.results import FIELDS

PROGRAM = Path(__file__).parents[2] / "python" / "bench_pto.py"


@pytest.mark.slow
def test_every_row_is_verified():
    command = [sys.executable, str(PROGRAM), "--quick", "--json", "--topology", "star:2", "--loopback"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    dealt = ["pto-gang", "pto-ring"]
    assert [(row["case"], row["algorithm"]) for row in rows] == [
        *(("lars", way) for way in ["local", *dealt]),
        *(("norms", way) for way in ["local", *dealt]),
        *(("gather", way) for way in dealt),
    ]
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
    assert rows[-1]["bytes"] == 161 * 2 * 8


def test_the_layers_of_resnet50():
    shapes = resnet50()
    assert len(shapes) == 161
    assert sum(map(math.prod, shapes)) == 25_557_032
    assert (2048, 1024, 1, 1) in shapes
    assert shapes[-2:] == [(1000, 2048), (1000,)]


@pytest.mark.parametrize("name", ["mst", "no-such"])
def test_what_does_no_all_gather_is_refused(refused, name):
    said = refused(bench_pto.main, "--loopback", "--gathers", f"gang,{name}")
    assert f"{name}: on star:8, gang, bml, ring" in said
