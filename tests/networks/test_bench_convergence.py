"""bench_convergence: whole fits with compressed gradients on an emulated network."""

import bench_convergence
import pytest
from lab.results import FIELDS

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.strategies.registry import strategy_class


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_a_row_for_every_way(rows_of) -> None:
    made = rows_of(bench_convergence, "--tasks", "resnet", "--ways", "dense,hitopk,auto")
    rows = {row["algorithm"]: row for row in made}
    assert list(rows) == ["dense", "hitopk", "auto"]
    for name, row in rows.items():
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert (row["verified"], row["case"], row["world"]) == (True, "resnet", 4)
        assert row["density"] == (1.0 if name == "dense" else 0.01)
        [curve] = row["curves"]
        assert len(curve) == 3
        assert row["accuracy"] == curve[-1] > 0
    assert rows["auto"]["tried"][0][0]["steps"] in ("dense", "sparse")


def test_all_ways_are_settings_that_the_driver_takes() -> None:
    for settings in bench_convergence.ways(0.01).values():
        conf = CommConf.from_mapping({PREFIX + name: value for name, value in settings.items()})
        strategy_class(conf).check(conf, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "mnist"], "--tasks: mnist: there are lenet5, resnet, transformer"),
        (["--ways", "dense,best"], "--ways: best: there are dense, exact, mstopk, topk"),
        (["--topology", "ring:3"], "ring:3"),
        (["--rates", "fast"], "--rates: must be numbers of Mbit/s"),
        (["--density", "2"], "--density: must be above 0"),
        (["--seeds", "0"], "--seeds: 0 is not"),
    ],
)
def test_what_makes_no_sense_is_said(refused, words: list[str], said: str) -> None:
    assert said in refused(bench_convergence.main, *words)
