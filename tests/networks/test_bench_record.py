"""bench_record: trainings whose images grow, on an emulated network."""

from __future__ import annotations

import bench_record
import pytest
from lab.results import FIELDS

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.strategies.registry import strategy_class


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_a_row_for_every_way_and_stage(rows_of) -> None:
    made = rows_of(bench_record, "--topology", "hosts:2x2", "--sides", "8,16,32", "--target", "1.0")
    rows = {(row["algorithm"], row["case"]): row for row in made}
    cases = ("8 x 8", "16 x 16", "training")
    assert list(rows) == [(way, case) for way in ("dense", "sparse", "record") for case in cases]
    for row in rows.values():
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert (row["verified"], row["world"]) == (True, 4)
        assert all(0 < accuracy < 1 for accuracy in row["accuracies"])
    strategies = {place: row["strategy"] for place, row in rows.items() if place[1] != "training"}
    assert [strategies["record", case] for case in cases[:2]] == ["hitopk", "torus2d"]
    assert {rows[way, "training"]["reached"] for way in ("dense", "sparse", "record")} == {0}
    for way in ("dense", "sparse", "record"):
        training = rows[way, "training"]
        assert len(training["curves"][0]) == 4
        assert training["curves"][0][-1] == rows[way, "16 x 16"]["accuracies"][0] == training["accuracies"][0]


def test_all_ways_are_settings_that_the_driver_takes() -> None:
    for stages in bench_record.ways(0.01, 3).values():
        assert len(stages) == 3
        for settings in stages:
            conf = CommConf.from_mapping({PREFIX + name: value for name, value in settings.items()})
            strategy_class(conf).check(conf, 8)


def test_the_time_to_an_accuracy_is_that_of_all_epochs_up_to_the_first_that_has_it() -> None:
    stages = [{"seconds": [3.0, 1.0], "accuracy": [0.5, 0.8]}, {"seconds": [2.0, 2.0], "accuracy": [0.9, 0.7]}]
    assert bench_record.time_to(0.8, stages) == (4.0, True)
    assert bench_record.time_to(0.9, stages) == (6.0, True)
    assert bench_record.time_to(0.95, stages) == (8.0, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topology", "ring:3"], "ring:3"),
        (["--sides", "16,x"], "--sides: must be whole numbers"),
        (["--sides", "4,16", "--epochs", "2,2"], "--sides: must be whole numbers, at least 8"),
        (["--epochs", "2,2"], "as many numbers as --sides, 3, not 2"),
        (["--density", "2"], "--density: must be above 0 and at most 1, not 2"),
        (["--seeds", "0"], "--seeds: 0 is not"),
    ],
)
def test_what_makes_no_sense_is_said(refused, words: list[str], said: str) -> None:
    assert said in refused(bench_record.main, *words)
