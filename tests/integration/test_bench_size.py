"""python/bench_size.py tells what gangs of several sizes cost."""

import bench_size
from lab.results import FIELDS


def test_driver_and_ranks_have_rows(rows_of):
    rows = rows_of(bench_size)
    assert {(row["case"], row["algorithm"]) for row in rows} == {
        ("rendezvous", "driver"),
        *((case, rank) for case in ("join", "gather") for rank in ("rank 0", "rank 1")),
    }
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
        assert row["bytes"] > 0
    driver = {row["world"]: row for row in rows if row["algorithm"] == "driver"}
    assert driver[8]["messages"] == 2 * driver[4]["messages"], "three for each rank"
