"""Decoupled collectives in buckets that iBatch's planner cuts; in threads over real sockets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkdl_comm.autotune import auto_strategy
from sparkdl_comm.autotune.auto_strategy import AutoStrategy, PlannedBuckets
from sparkdl_comm.autotune.choice import Turn
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, ModelError, PluginError
from sparkdl_comm.strategies.registry import strategy_class
from tests.unit.compression_helpers import Sometimes, net, table, trained, values
from tests.unit.ranks import train
from tests.unit.train.test_resume import Fit

#: Each parameter has a bucket of its own until it is planned.
BATCHED: dict[str, Any] = {"strategy": "ring", "loop": "decoupled", "batching": "ibatch", "bucket": 4}
ADAM = functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5)


class TakesPlanned:
    """In the place of a choice: two steps, and then what is planned, whatever it is predicted to take."""

    def __init__(self, first: str, settling: Any) -> None:
        self.decisions: list[Any] = []
        self.turn = Turn(first, 1, 1)

    def record_turn(self, seconds: Sequence[float], step: int) -> bool:
        return True

    def start_decision(self, seconds: Mapping[str, float], step: int, families: Mapping[str, str]) -> None:
        (planned,) = (name for name in seconds if name.endswith("+ibatch"))
        self.turn = Turn(planned, 0, 0)


@pytest.fixture
def takes_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_strategy, "Choice", TakesPlanned)


def buckets(loops: list[Any]) -> set[tuple[tuple[int, int], ...]]:
    """First element and end of each, of all ranks."""
    return {tuple(loop.strategy._switcher.current._buckets.ranges) for loop in loops}


@pytest.mark.parametrize("settings", [{}, {"strategy": "lp"}, {"strategy": "mst"}, {"topology": "hosts:2x2"}])
@pytest.mark.parametrize("module", [net, Sometimes])
@pytest.mark.usefixtures("takes_planned")
@pytest.mark.slow
def test_training_goes_on_in_planned_buckets(settings: dict[str, Any], module: Any) -> None:
    whole = values(trained(module, {"strategy": "ring"}, 8, optimizer=ADAM))
    loops = trained(module, {**BATCHED, **settings}, 8, optimizer=ADAM)
    torch.testing.assert_close(values(loops), whole, rtol=1e-4, atol=1e-5)
    (planned,) = buckets(loops)
    ends = {layer.start + layer.count for layer in loops[0].model.layers}
    assert {stop for _, stop in planned} <= ends
    name = f"{settings.get('strategy', 'ring')}+decoupled+ibatch"
    assert [loop.strategy.details()["auto"]["chosen"] for loop in loops] == [name] * 4
    assert loops[0].strategy.details()["decoupled"]["buckets"] == len(planned)


def test_it_stays_with_what_is_faster_and_says_why() -> None:
    loops = trained(net, BATCHED, 30, optimizer=ADAM)
    whole = values(trained(net, {"strategy": "ring"}, 30, optimizer=ADAM))
    torch.testing.assert_close(values(loops), whole, rtol=1e-4, atol=1e-5)
    first = loops[0].strategy.details()["auto"]["decisions"][0]
    assert first["predicted"].keys() == {"ring+decoupled", "ring+decoupled+ibatch"}
    assert first["chosen"] == min(first["measured"], key=lambda name: first["measured"][name]) or first["chosen"] == (
        "ring+decoupled"
    )


@pytest.mark.usefixtures("takes_planned")
@pytest.mark.slow
def test_a_checkpoint_has_the_planned_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"conf": BATCHED, "optimizer": ADAM}
    whole = Fit(tmp_path / "whole", PlannedBuckets, epochs=4, **how)
    cut = Fit(tmp_path / "cut", PlannedBuckets, epochs=2, **how)
    monkeypatch.setattr(TakesPlanned, "record_turn", lambda self, seconds, step: False)  # plans no more
    rest = Fit(tmp_path / "cut", PlannedBuckets, epochs=4, resume=True, **how)
    assert buckets(rest.loops) == buckets(cut.loops) == buckets(whole.loops)
    for ours, theirs in zip(rest.loops, whole.loops, strict=True):
        assert torch.equal(ours.model.values, theirs.model.values)


def test_one_rank_has_nothing_to_plan() -> None:
    loops = train(net, [table()], strategy=PlannedBuckets, conf=BATCHED, epochs=6)
    told = loops[0].strategy.details()["auto"]
    assert told["decisions"] == []
    assert told["left_out"] == {"ring+decoupled+ibatch": "there is one rank"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"loop": "all-reduce"}, "collective.batching=ibatch is for collective.loop=decoupled, not all-reduce"),
        ({"strategy": "auto", "loop": "all-reduce"}, "collective.batching=ibatch is for collective.loop=decoupled"),
        ({"strategy": "cheapest"}, "collective.loop=decoupled: cheapest and auto may choose"),
        ({"compression": "topk:0.1"}, "collective.loop=decoupled sends whole gradients"),
        ({"topology": "bcube:2,2"}, "bcube:2,2 has 2 rails"),
    ],
)
def test_what_the_driver_refuses(settings: dict[str, Any], complaint: str) -> None:
    conf = CommConf.from_mapping({}, **{**BATCHED, **settings})
    with pytest.raises(ConfError, match=complaint):
        strategy_class(conf).check(conf, 4)


def test_without_java_there_is_no_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PluginError, match="collective.batching=ibatch: no java in JAVA_HOME"):
        trained(net, BATCHED, 1)


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="torch 2.4 has no Adafactor")
def test_an_optimizer_that_needs_whole_tensors() -> None:
    with pytest.raises(ModelError, match="Adafactor is not elementwise"):
        trained(net, BATCHED, 1, optimizer=lambda params: torch.optim.Adafactor(params, lr=0.05))


def test_auto_needs_a_candidate_to_begin_with() -> None:
    with pytest.raises(ConfError, match="auto.candidates=ring\\+decoupled\\+ibatch: a fit must begin with"):
        trained(net, {"strategy": "auto", "auto_candidates": ("ring+decoupled+ibatch",)}, 1)


@pytest.mark.slow
def test_auto_plans_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("lp", "ring+decoupled+ibatch")
    monkeypatch.setattr(auto_strategy, "Choice", TakesPlanned)
    loops = trained(net, {"strategy": "auto", "bucket": 4, "auto_candidates": names}, 8, optimizer=ADAM)
    whole = values(trained(net, {"strategy": "ring"}, 8, optimizer=ADAM))
    torch.testing.assert_close(values(loops), whole, rtol=1e-4, atol=1e-5)
    assert loops[0].strategy.details()["auto"]["chosen"] == "ring+decoupled+ibatch"
    assert len(buckets(loops)) == 1


class PredictsAgain(TakesPlanned):
    """Stays with what it begins with, and wants predictions after each turn."""

    def start_decision(self, seconds: Mapping[str, float], step: int, families: Mapping[str, str]) -> None:
        self.turn = Turn(self.turn.candidate, 0, 1)


def test_links_are_measured_when_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_strategy, "Choice", PredictsAgain)
    under_way: list[int] = []
    measured = AutoStrategy._measured_cost

    def noted(self: AutoStrategy) -> Any:
        before, coming = self._has_predicted, self._switcher.current._in_flight
        assert coming, "the test must show what it claims"
        cost = measured(self)
        under_way.append(len(coming) if before else 0)
        return cost

    monkeypatch.setattr(AutoStrategy, "_measured_cost", noted)
    trained(net, BATCHED, 6)
    assert len(under_way) >= 2 * 4
    assert not any(under_way)
