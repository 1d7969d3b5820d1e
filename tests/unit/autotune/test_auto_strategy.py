"""Strategy auto: strategies take over from each other with all bits; in threads over real sockets."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.autotune import auto_strategy
from sparkdl_comm.autotune.auto_strategy import AutoStrategy
from sparkdl_comm.autotune.choice import Turn
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.optim import LAMB, LARS
from sparkdl_comm.strategies.compressed_exchange import CompressedExchange
from tests.optimizers import Mine
from tests.slow import crossed, slow
from tests.unit.compression_helpers import Sometimes, net, table, trained, values, with_skipped_steps
from tests.unit.ranks import train
from tests.unit.train.test_resume import Fit

#: Each parameter has a bucket of its own.
AUTO: dict[str, Any] = {"strategy": "auto", "bucket": 4}
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM = functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5)


class Scripted:
    """In the place of a choice: these candidates, each for some steps."""

    script: Sequence[Turn] = ()

    def __init__(self, first: str, settling: Any) -> None:
        self.decisions: list[Any] = []
        self._left = list(self.script)
        self.turn = self._left.pop(0)

    def record_turn(self, seconds: Sequence[float], step: int) -> bool:
        assert len(seconds) == self.turn.steps
        self.turn = self._left.pop(0) if self._left else self.turn
        return False


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the choice these candidates, for two steps each, of which one settles, and the last one until the end."""

    def use(*names: str) -> None:
        monkeypatch.setattr(Scripted, "script", [Turn(name, 1, 1) for name in names])
        monkeypatch.setattr(auto_strategy, "Choice", Scripted)

    return use


def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What rank 0 has at the beginning of each step."""
    found: list[str] = []
    begin = AutoStrategy.begin_step

    def noted(self: AutoStrategy) -> None:
        begin(self)
        if self._gang.rank == 0:
            found.append(self._turn.candidate)

    monkeypatch.setattr(AutoStrategy, "begin_step", noted)
    return found


@pytest.mark.parametrize(
    ("module", "optimizer"),
    crossed(
        [net, Sometimes],
        [SGD, ADAM, functools.partial(torch.optim.RMSprop, lr=0.01), functools.partial(torch.optim.NAdam, lr=0.01)],
        quick=[(net, SGD), (Sometimes, ADAM)],
    ),
)
def test_the_bits_of_one_that_stays(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, module: Any, optimizer: Any
) -> None:
    whole = values(trained(module, {"strategy": "ring", "bucket": 4}, 12, optimizer=optimizer))
    scripted("ring", "ring+decoupled", "ring", "ring+decoupled", "ring+decoupled", "ring")
    seen = taken(monkeypatch)
    loops = trained(module, AUTO, 12, optimizer=optimizer)
    assert torch.equal(values(loops), whole)
    assert seen == [
        *(name for name in ("ring", "ring+decoupled", "ring") for _ in range(2)),
        *["ring+decoupled"] * 4,
        *["ring"] * 2,
    ]


def test_strategies_that_add_in_other_orders(scripted: Any) -> None:
    whole = values(trained(net, {"strategy": "ring"}, 14, optimizer=ADAM))
    scripted("bml", "lp+decoupled", "p2p-ps", "mst+decoupled", "cheapest", "tree", "torus2d+decoupled")
    torch.testing.assert_close(values(trained(net, AUTO, 14, optimizer=ADAM)), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [{"accumulation_steps": 3, "batch": 8}, {"max_grad_norm": 0.1}, slow({"batch": 8})])
def test_accumulation_clipping_and_batches(scripted: Any, more: dict[str, Any]) -> None:
    whole = values(trained(net, {"strategy": "ring"}, 6, optimizer=ADAM, **more))
    scripted("ring", "ring+decoupled", "ring", "ring+decoupled")
    torch.testing.assert_close(values(trained(net, AUTO, 6, optimizer=ADAM, **more)), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "scheduler",
    [
        slow(functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)),
        functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2),
    ],
)
@pytest.mark.filterwarnings("error:Detected call of")
def test_schedulers_go_on(scripted: Any, scheduler: Any) -> None:
    how: dict[str, Any] = {"optimizer": SGD, "lr_scheduler": scheduler}
    whole = trained(net, {"strategy": "ring", "bucket": 4}, 9, **how)
    scripted("ring", "ring+decoupled", "ring")
    loops = trained(net, AUTO, 9, **how)
    assert torch.equal(values(loops), values(whole))
    assert [row["lr"] for row in loops[0].progress.history] == [row["lr"] for row in whole[0].progress.history]


@pytest.mark.parametrize(
    "optimizer", [slow(functools.partial(LARS, lr=0.5, momentum=0.9)), functools.partial(LAMB, lr=0.05)]
)
def test_optimizers_that_need_norms(scripted: Any, optimizer: Any) -> None:
    whole = values(trained(net, {"strategy": "ring"}, 8, optimizer=optimizer))
    scripted("ring", "ring+decoupled", "ring")
    torch.testing.assert_close(values(trained(net, AUTO, 8, optimizer=optimizer)), whole, rtol=1e-5, atol=1e-6)


def test_steps_that_fp16_skips(scripted: Any) -> None:
    scripted("ring", "ring+decoupled", "ring")
    with_skipped_steps(AUTO)


class Wholes(torch.optim.SGD):
    """Not elementwise: looks at a whole tensor."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / (1 + parameter.grad.norm())
        return super().step(closure)


def test_an_optimizer_that_needs_whole_tensors(scripted: Any) -> None:
    optimizer = functools.partial(Wholes, lr=0.1, momentum=0.9)
    whole = values(trained(net, {"strategy": "ring"}, 8, optimizer=optimizer))
    scripted("ring", "lp", "ring")
    loops = trained(net, AUTO, 8, optimizer=optimizer)
    torch.testing.assert_close(values(loops), whole, rtol=1e-5, atol=1e-6)
    left_out = loops[0].strategy.details()["auto"]["left_out"]
    assert "Wholes" in left_out["ring+decoupled"]


def test_an_optimizer_of_the_users(scripted: Any) -> None:
    optimizer = functools.partial(Mine, lr=0.05)
    whole = values(trained(net, {"strategy": "ring"}, 8, optimizer=optimizer))
    scripted("ring", "ring+decoupled", "ring")
    torch.testing.assert_close(values(trained(net, AUTO, 8, optimizer=optimizer)), whole, rtol=1e-5, atol=1e-6)


def test_what_compression_left_out_travels_before_another_takes_over(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**AUTO, "compression": "topk:0.1", "topology": "hosts:2x2"}
    scripted("cheapest", "hitopk", "cheapest")
    left: list[float] = []
    close = CompressedExchange.close

    def noted(self: CompressedExchange) -> None:
        left.append(sum(part.residual.abs().sum().item() for part in self._feedback._parts.values()))
        close(self)

    monkeypatch.setattr(CompressedExchange, "close", noted)
    seen = taken(monkeypatch)
    values(trained(net, settings, 12))
    assert seen == [*["cheapest"] * 3, *["hitopk"] * 3, *["cheapest"] * 6]
    assert left[:8] == [0.0] * 8
    assert all(each > 0 for each in left[8:]), "the last one has left something out"


@pytest.mark.parametrize(
    ("first", "written"),
    crossed(
        ["ring", "ring+decoupled", "bml+decoupled"], ["ring", "ring+decoupled"],
        quick=[("ring", "ring+decoupled"), ("bml+decoupled", "ring")],
    ),
)  # fmt: skip
def test_goes_on_from_a_checkpoint(scripted: Any, first: str, written: str) -> None:
    """The fit goes on with the strategy that wrote the checkpoint, and gets the bits of a fit without a break."""
    kept: dict[int, Any] = {}

    def keep(loop: Any) -> None:
        kept[loop.strategy._gang.rank] = loop.strategy.optimizer_state(), loop.state(), loop.strategy.is_sharded

    whole = values(trained(net, {"strategy": "ring", "bucket": 4}, 8, optimizer=ADAM))
    scripted("ring", written)
    half = values(trained(net, AUTO, 4, optimizer=ADAM, finish=keep))
    assert kept[0][2] == (written != "ring")

    def go_on(loop: Any) -> None:
        rank = loop.strategy._gang.rank
        loop.strategy.load_optimizer_state(kept[rank if kept[0][2] else 0][0])
        Scripted.script = [Turn(written, 1, 1)]
        loop.load_state(kept[rank][1])

    scripted(first)
    loops = trained(net, AUTO, 8, optimizer=ADAM, arrive=lambda spec, gang, model: model.load(0, half), prepare=go_on)
    assert [loop.strategy.details()["auto"]["chosen"] for loop in loops] == [written] * 4
    assert torch.equal(values(loops), whole)


@pytest.mark.parametrize(("before", "then"), [("ring+decoupled", "ring"), slow("ring", "ring+decoupled")])
def test_a_checkpoint_on_disk_is_read_as_it_was_written(scripted: Any, tmp_path: Path, before: str, then: str) -> None:
    how: dict[str, Any] = {"conf": AUTO, "optimizer": ADAM}
    scripted("ring")
    whole = Fit(tmp_path / "whole", AutoStrategy, epochs=4, **how)
    scripted("ring", before)
    Fit(tmp_path / "cut", AutoStrategy, epochs=2, **how)
    written = {path.stem for path in (tmp_path / "cut" / "step-00000006").iterdir()}
    assert ("optimizer-1" in written) == (before == "ring+decoupled")
    scripted(then)
    rest = Fit(tmp_path / "cut", AutoStrategy, epochs=4, resume=True, **how)
    assert {restorer.step for restorer in rest.restorers.values()} == {6}
    for ours, theirs in zip(rest.loops, whole.loops, strict=True):
        assert torch.equal(ours.model.values, theirs.model.values)


def test_a_real_choice_says_what_it_did() -> None:
    loops = trained(net, AUTO, 40, optimizer=ADAM)
    whole = values(trained(net, {"strategy": "ring"}, 40, optimizer=ADAM))
    torch.testing.assert_close(values(loops), whole, rtol=1e-4, atol=1e-5)
    told = loops[0].strategy.details()["auto"]
    first = told["decisions"][0]
    assert first["why"] == "the beginning"
    assert first["step"] == 6
    assert first["chosen"] in first["measured"]
    assert {"ring", "lp", "ring+decoupled"} <= first["predicted"].keys()
    assert all(seconds > 0 for seconds in [*first["predicted"].values(), *first["measured"].values()])
    assert told["chosen"] == [one["chosen"] for one in told["decisions"] if one["chosen"] is not None][-1]
    assert "no sparkdl_comm plugin" in told["left_out"]["ps+whole"]


def test_candidates_that_the_user_names() -> None:
    loops = trained(net, {**AUTO, "auto_candidates": ("lp", "mst+decoupled")}, 20)
    told = loops[0].strategy.details()["auto"]
    assert {name for one in told["decisions"] for name in one["predicted"]} == {"lp", "mst+decoupled"}
    assert told["left_out"]["ring"] == "not in spark.sparkdl.comm.auto.candidates"


def test_one_rank_has_nothing_to_choose() -> None:
    loops = train(net, [table()], strategy=AutoStrategy, conf=AUTO, epochs=10)
    told = loops[0].strategy.details()["auto"]
    assert told["decisions"] == []
    assert told["left_out"]["ring+decoupled"] == "there is one rank"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"auto_candidates": ("rong",)}, "auto.candidates: 'rong' is no candidate. Use cheapest"),
        ({"auto_candidates": ("rnig",)}, r"auto.candidates: 'rnig' is no candidate.*; did you mean ring\?$"),
        ({"auto_candidates": ("ring+root",)}, r"auto.candidates: 'ring\+root' is no candidate"),
        ({"auto_candidates": ("ps",)}, "auto.candidates: 'ps' is no candidate"),
        ({"topology": "bcube:2,2"}, "bcube:2,2 has 2 rails"),
    ],
)
def test_what_the_driver_refuses(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfError, match=complaint):
        AutoStrategy.check(CommConf.from_mapping({}, strategy="auto", **settings), 4)


def test_no_candidate_can_run() -> None:
    with pytest.raises(ConfError, match="auto.candidates=ps\\+whole: .*no sparkdl_comm plugin"):
        trained(net, {**AUTO, "auto_candidates": ("ps+whole",)}, 2)


class Breaks(nn.Module):
    """Where the last rank's rows are, in a step of its own choosing."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.body, self.calls, self.step = net(), 0, step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.step and bool((x[:, 0] != 0).any()):
            raise ValueError("this rank has enough")
        return self.body(x)


@pytest.mark.parametrize("step", [slow(2), 3, slow(4)])
def test_a_rank_fails_while_another_strategy_takes_over(scripted: Any, step: int) -> None:
    scripted("ring", "ring+decoupled", "ring")
    with pytest.raises(Exception, match="this rank has enough"):
        trained(functools.partial(Breaks, step), AUTO, 8)
