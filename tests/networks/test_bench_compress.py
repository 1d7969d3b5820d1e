"""bench_compress on an emulated network: sums of gradients, sparse and dense."""

import bench_compress
import pytest
from lab.results import FIELDS


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_every_algorithm_gives_a_row_that_is_right(rows_of) -> None:
    rows = {row["algorithm"]: row for row in rows_of(bench_compress, "--topology", "hosts:2x2")}
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
        (["--topology", "star:3", "--algorithms", "hitopk,best"], "--algorithms: best: there are hitopk"),
        (["--topology", "star:3", "--density", "2"], "--density: must be above 0"),
    ],
)
def test_what_makes_no_sense_is_said(refused, arguments: list[str], said: str) -> None:
    assert said in refused(bench_compress.main, *arguments)
