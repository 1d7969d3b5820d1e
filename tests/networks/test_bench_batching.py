"""bench_ps on an emulated network: a row for every way to cut a network into batches, all with the same bits."""

from collections.abc import Callable

import bench_ps
import pytest
from lab.results import FIELDS

WAYS = ["whole", "layerwise", "paper", "paper-layerwise", "ibatch-pull", "ibatch", "optimal"]
ALL_REDUCES = ["ring", "bml", "ddp"]


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_every_way_gives_a_row_and_the_same_bits(rows_of) -> None:
    found = {row["algorithm"]: row for row in rows_of(bench_ps, "--topology", "star:2", "--delay", "20")}
    assert list(found) == WAYS + ALL_REDUCES
    for row in found.values():
        assert set(FIELDS) <= row.keys()
        assert row["verified"]
        assert (row["compute"], row["world"], row["delay"]) == ("emulated", 2, 0.02)
        assert row["throughput_over_ddp"] == pytest.approx(found["ddp"]["seconds"] / row["seconds"])
    for way in WAYS:
        row = found[way]
        assert row["pull_seconds"] == pytest.approx(row["forward_seconds"]), "the rate was chosen so"
        assert row["predicted_seconds"] > 0
        assert row["theory_seconds"] >= 2 * row["pull_seconds"]
        assert row["throughput_over_whole"] == pytest.approx(found["whole"]["seconds"] / row["seconds"])
        assert {"forward", "backward", "update"} <= row["phases"].keys()
        assert 0 <= row["overlapped"] < sum(row["phases"][name] for name in ("forward", "backward", "update"))
    assert {way: found[way]["kept"]["pull"] for way in ("whole", "layerwise")} == {
        "whole": "whole",
        "layerwise": "layerwise",
    }
    assert found["ibatch"]["tried"].keys() == found["ibatch"]["tried_predicted"].keys() >= {"whole", "ibatch"}
    for way, pushes in {"layerwise": 19, "whole": 1, "paper": 1, "paper-layerwise": 1, "ibatch-pull": 1}.items():
        assert found[way]["batches"]["push"] == pushes
    for direction in ("pull", "push"):
        assert found["optimal"]["startup_seconds"][direction] >= 0.02, "as the lab delays it"


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_networks_that_compute(rows_of) -> None:
    for row in rows_of(
        bench_ps,
        "--topology",
        "star:2",
        "--model",
        "real:vgg",
        "--rate",
        "200",
        "--batching",
        "whole,ibatch,whole-sparse,ibatch-sparse",
    ):
        assert (row["case"], row["compute"], row["theory_seconds"]) == ("real:vgg", "real", None)
        assert row["verified"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batching", "whole,sideways"], "--batching: sideways: there are whole"),
        (["--model", "real:vgg", "--rate", "auto:1"], "give Mbit/s"),
        (["--model", "vgg99"], "profile 'vgg99' is not known"),
        (["--rate", "fast"], "--rate fast"),
    ],
)
def test_options_that_make_no_sense(arguments: list[str], said: str, refused: Callable[..., str]) -> None:
    assert said in refused(bench_ps.main, "--topology", "star:2", *arguments)
