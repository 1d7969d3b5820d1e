"""bench_cache: fits on encoded images, on an emulated network."""

import bench_cache
import pytest
from cached.fits_job import WAYS
from lab.results import FIELDS


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_every_way_gives_a_row_that_is_right(rows_of) -> None:
    rows = rows_of(bench_cache, "--topology", "star:2")
    assert [row["algorithm"] for row in rows] == list(WAYS)
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
        assert len(row["epochs"]) == 2
        assert (row["disk"] > 0) == row["algorithm"].startswith("disk")
        assert (row["held"] > 0) == ("half" in row["algorithm"])
        assert row["held"] <= row["disk"] / 2


@pytest.mark.parametrize(("words", "said"), [(["--topology", "ring:3"], "ring:3"), (["--copies", "0"], "0")])
def test_what_makes_no_sense_is_said(refused, words: list[str], said: str) -> None:
    assert said in refused(bench_cache.main, *words)
