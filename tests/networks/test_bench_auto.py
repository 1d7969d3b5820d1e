"""bench_auto on an emulated network: auto beside strategies that stay, and links that change in mid-run."""

import bench_auto
import pytest
from lab.results import FIELDS


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_auto_beside_strategies_that_stay(rows_of) -> None:
    rows = rows_of(bench_auto, "--topology", "star:2", "--drop")
    assert [row["algorithm"] for row in rows] == ["ring", "ps+layerwise", "auto"] * 2 + ["auto"]
    for row in rows:
        assert set(FIELDS) <= row.keys()
        assert row["verified"]
        assert row["compute"] == "emulated"
        assert row["theory_seconds"] > 0
    for row in rows:
        if row["algorithm"] == "auto":
            assert row["regret"] == pytest.approx(row["seconds"] / row["theory_seconds"] - 1)
            assert row["decisions"][0]["predicted"].keys() >= {"ring", "ps+layerwise"}
    assert rows[-1]["case"] == "vgg19 drop"
    assert rows[-1]["changed"] == 20
