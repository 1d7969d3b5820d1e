"""bench_sim.py beside the lab: what was simulated first is then measured, and what a timeline tells is tried."""

import json
from pathlib import Path

import bench_sim
import pytest


@pytest.mark.usefixtures("networks")
def test_cells_are_simulated_before_they_are_measured(rows_of, tmp_path: Path) -> None:
    written = tmp_path / "made" / "predictions.json"
    rows = rows_of(bench_sim, "--blind", "--predictions", str(written))
    told = {cell["bytes"]: cell["seconds"] for cell in json.loads(written.read_text())["cells"]}
    assert {row["bytes"]: row["simulated"] for row in rows} == told
    for row in rows:
        assert row["verified"]
        assert row["error"] == pytest.approx(row["simulated"] / row["seconds"] - 1)


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_predictions_from_a_timeline_are_tried(rows_of) -> None:
    rows = rows_of(bench_sim, "--predict", "--forward", "0.1")
    assert [row["algorithm"] for row in rows if row["source"]] == ["ibatch"]
    assert {row["topology"] for row in rows} == {"star:4", "bcube:2,2"}
    for row in rows:
        assert row["verified"]
        assert row["error"] == pytest.approx(row["predicted"] / row["seconds"] - 1)
