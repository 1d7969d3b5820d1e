"""What bench_auto.py makes of what fits tell."""

from __future__ import annotations

import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import bench_auto
import pytest
from peers.ways import fits

from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.topology import Topology

DECISIONS = [{"step": 6, "since": 14, "chosen": "ring"}, {"step": 108, "since": 117, "chosen": "lp"}]


@pytest.mark.parametrize(("change", "steps"), [(100, 17), (108, None), (4, 10)])
def test_steps_until_it_was_decided_again(change: int, steps: int | None) -> None:
    assert bench_auto._switched(DECISIONS, change) == steps
    assert bench_auto._switched([{"step": 200, "since": None, "chosen": None}], change) is None


def test_all_steps_of_auto_count_and_settled_ones_of_others() -> None:
    options, profile = Namespace(topology=Topology.parse("star:2")), Profile.load("lenet5")
    result: dict[str, Any] = {"seconds": [9.0] * 10 + [1.0] * 20, "bytes": 5.0, "verified": True}
    ways = {"ring": 1.0}
    ours = {**result, "way": "auto", "auto": {"chosen": "lp", "decisions": DECISIONS, "server": None}}
    auto = bench_auto._row(options, "x", profile, 1_000_000, ours, {"exchange": 2.0, "ways": ways}, 1.0)
    assert auto.extra["regret"] == pytest.approx(110 / 30 - 1)
    assert auto.seconds / auto.theory_seconds - 1 == pytest.approx(auto.extra["regret"])
    ring = bench_auto._row(
        options, "x", profile, 1_000_000, {**result, "way": "ring"}, {"exchange": 2.0, "ways": ways}, 1.0
    )
    assert ring.seconds == 1.0
    assert "ways" not in ring.extra


def test_what_stays_is_what_can_run_there() -> None:
    ways = bench_auto.WAYS.split(",")

    def kept(topology: str) -> list[str]:
        return [way for way in ways if fits(way, Topology.parse(topology))]

    assert kept("star:4") == kept("star:8") == kept("bcube:2,2") == ways
    assert kept("hosts:2x2") == [way for way in ways if not way.startswith("bml")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ways", "ring,rnig"], "--ways rnig: strategy 'rnig' is unknown"),
        (
            ["--ways", "ring+decuopled"],
            "--ways ring+decuopled: spark.sparkdl.comm.strategy='ring+decuopled': must be",
        ),
        (["--ways", "ps+hole"], "--ways ps+hole: spark.sparkdl.comm.strategy='ps+hole': must be ps, or ps+BATCHING"),
        (["--profiles", "vgg19,lenet6"], "--profiles: lenet6: there are alexnet"),
    ],
)
def test_what_it_refuses(arguments: list[str], said: str, refused: Any) -> None:
    assert said in refused(bench_auto.main, *arguments)


def test_links_change_when_the_file_is_there_and_not_before(tmp_path: Path) -> None:
    done = threading.Event()
    with bench_auto._once(tmp_path / "signal", done.set):
        assert not done.is_set()
        (tmp_path / "signal").touch()
        assert done.wait(10)
    done.clear()
    with bench_auto._once(tmp_path / "never", done.set):
        pass
    assert not done.is_set()
