"""python/bench_pto.py verifies what it times."""

import math

import bench_pto
import pytest
from lab.results import FIELDS
from peers.resnet import resnet50


@pytest.mark.slow
def test_every_row_is_verified(rows_of):
    rows = rows_of(bench_pto, "--topology", "star:2", "--loopback")
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
    assert f"{name}: on star:8, gang, bml, lp, ring" in said
