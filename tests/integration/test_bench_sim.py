"""python/bench_sim.py tells how far the simulator is from what the lab has measured."""

import bench_sim
import pytest
from lab.results import FIELDS
from simulating.validation import FITTED, cells


@pytest.mark.slow
def test_cells_are_told_with_their_errors(rows_of):
    rows = rows_of(bench_sim, "--validate")
    assert {row["case"] for row in rows} == {"collectives", "exchanges", "steps", "loops", "server", "fabric"}
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
        assert row["error"] == pytest.approx(row["seconds"] / row["measured"] - 1)


def test_what_is_fitted_is_not_counted():
    every = cells()
    assert sum(cell.is_fitted for cell in every) == len(FITTED)
    assert sum(not cell.is_fitted for cell in every) >= 40


def test_figures_have_their_rows(rows_of):
    rows = rows_of(bench_sim, "--scale")
    assert {row["case"] for row in rows} == {
        *("fig5", "broadcast", "reduce", "all_reduce", "commlib", "ibatch", "greedy"),
    }
    assert all(row["verified"] for row in rows)
    bml = next(row for row in rows if row["case"] == "fig5" and row["algorithm"] == "bml")
    assert (bml["topology"], bml["simulated"]) == ("bcube:4,2", 1)
    assert bml["links"] > bml["formula"] == 0.9375
    batched = {row["algorithm"]: row for row in rows if row["case"] == "ibatch"}
    assert batched["whole"]["split"]["overlapping"] == 0
    split = batched["paper"]["split"]
    told = split["overlapping"] + split["communication"] + split["computation"]
    assert told == pytest.approx(batched["paper"]["seconds"])
    assert batched["both ways"]["seconds"] < batched["paper"]["seconds"] < batched["whole"]["seconds"]
