"""Strategy auto with the fabric among its candidates: in threads over real sockets, the server in a process of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies import chosen
from sparkdl_comm.strategies.choice import Choice, Turn
from sparkdl_comm.strategies.chosen_by_epoch import ChosenByEpoch
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train.loop.changing_loop import ChangingLoop
from tests.unit.compression_helpers import values
from tests.unit.ranks import train
from tests.unit.test_fabric_training import line, mean_losses
from tests.unit.test_resume import Fit

SETTINGS: dict[str, Any] = {
    "strategy": "auto",
    "auto_candidates": ("ring", "fabric"),
    "fabric_batch_interval": "10ms",
    "fabric_aggregators": 0,
}
#: Optimizer steps of an epoch.
STEPS = 10
ADAM = functools.partial(torch.optim.Adam, lr=0.02)


def fit(epochs: int, world: int = 3, make: Any = None, **more: Any) -> list[Any]:
    parts = line().cut(*[120 // world] * world)
    conf = {**SETTINGS, **more.pop("conf", {})}
    make = make or (lambda: nn.Linear(3, 1))
    return train(make, parts, strategy=ChosenByEpoch, conf=conf, batch=12, epochs=epochs, **more)


class Scripted(Choice):
    """These candidates, each for an epoch; the last one for all that are left."""

    script: Sequence[str] = ()

    def __init__(self, first: str, settling: Any, by_epoch: str | None) -> None:
        super().__init__(first, settling, by_epoch)
        self._left = list(self.script[1:])

    def epoch(self, seconds: float, step: int) -> None:
        name = self._left.pop(0) if self._left else self.turn.candidate
        self.turn = Turn(name, 0, 0 if name == "fabric" else 5)

    def took(self, seconds: Sequence[float], step: int) -> bool:
        return False


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*names: str) -> None:
        monkeypatch.setattr(Scripted, "script", names)
        monkeypatch.setattr(chosen, "Choice", Scripted)

    return use


def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What rank 0 has in each epoch."""
    found: list[str] = []
    begin = ChosenByEpoch.begin_epoch

    def noted(self: ChosenByEpoch, step: int, seconds: float | None) -> None:
        begin(self, step, seconds)
        if self._gang.rank == 0:
            found.append(self._turn.candidate)

    monkeypatch.setattr(ChosenByEpoch, "begin_epoch", noted)
    return found


@pytest.mark.parametrize("optimizer", [functools.partial(torch.optim.SGD, lr=0.01, momentum=0.5), ADAM])
def test_there_and_back(scripted: Any, monkeypatch: pytest.MonkeyPatch, optimizer: Any) -> None:
    """All ranks have the same bits after each change, and training goes on as if nothing had happened."""
    scripted("ring", "fabric", "ring", "ring")
    seen = taken(monkeypatch)
    loops = fit(4, optimizer=optimizer, validation=line(30).cut(10, 10, 10), max_grad_norm=10.0)
    assert seen == ["ring", "fabric", "ring", "ring"]
    values(loops)
    for loop in loops:
        assert [row["step"] for row in loop.progress.history] == [STEPS * epoch for epoch in (1, 2, 3, 4)]
        assert loop.progress.step == 4 * STEPS
    alone = train(
        lambda: nn.Linear(3, 1),
        line().cut(40, 40, 40),
        strategy=strategy_class(CommConf.from_mapping({}, strategy="ring")),
        conf={"strategy": "ring"},
        batch=12,
        epochs=4,
        optimizer=optimizer,
        validation=line(30).cut(10, 10, 10),
    )
    mine, others = (mean_losses(each) for each in (loops, alone))
    assert mine[0] == pytest.approx(others[0], rel=1e-4), "before the first change"
    assert mine[3] < 0.7 * mine[0]
    for found, expected in zip(mine, others, strict=True):
        assert found == pytest.approx(expected, rel=0.25), "an update for each rank is about as large as a step of all"
    assert [row["val_loss"] for row in loops[0].progress.history] == [
        row["val_loss"] for row in loops[1].progress.history
    ]


def test_all_optimizers_go_on_with_rank_0s(scripted: Any) -> None:
    scripted("ring", "fabric", "ring")
    states: dict[int, Any] = {}

    def keep(loop: Any) -> None:
        states[loop.strategy._gang.rank] = loop.strategy.optimizer_state()["part"]["vectors"]

    fit(3, optimizer=ADAM, finish=keep)
    assert states[0]["exp_avg"].abs().sum() > 0
    for rank in (1, 2):
        for name, vector in states[0].items():
            assert torch.equal(states[rank][name], vector)


def test_an_epoch_has_its_rows_in_another_order(scripted: Any) -> None:
    scripted("ring", "fabric")

    class Watches(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.seen: list[float] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x[:, 0].tolist()
            return super().forward(x)

    for loop in fit(2, world=2, make=Watches):
        first, second = loop.model.module.seen[:60], loop.model.module.seen[60:120]
        assert len(set(first)) == 60
        assert second
        assert set(second) <= set(first)
        assert second != first[: len(second)]


class Slow(nn.Linear):
    """Where rank 0's rows are, a step takes long."""

    def __init__(self, row: torch.Tensor) -> None:
        super().__init__(3, 1)
        self.row = row

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.2 if bool((self.row == x[0]).all(1).any()) else 0.01)
        return super().forward(x)


def test_a_slow_rank_makes_it_choose_the_fabric() -> None:
    firsts = line().cut(40, 40, 40)[0].features
    loops = fit(6, make=lambda: Slow(firsts))
    values(loops)
    told = loops[0].strategy.details()
    auto, (first, trial) = told["auto"], told["auto"]["decisions"]
    assert first["chosen"] == "ring"
    assert first["predicted"]["fabric"] < 0.5 * first["measured"]["ring"]
    assert auto["chosen"] == trial["chosen"] == "fabric"
    assert trial["why"] == "fabric is predicted to be faster than ring by a clear margin"
    assert trial["step"] == STEPS + 1
    assert trial["measured"]["fabric"] < 0.85 * trial["measured"]["ring"]
    assert told["updates"] >= 5 * STEPS * 3
    losses = mean_losses(loops)
    assert losses[-1] < 0.5 * losses[0]


def predicted(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("sparkdl_comm.strategies.candidates.seconds_per_round", lambda *_: seconds)


def test_a_trial_that_disappoints_is_over_after_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is predicted to take no time at all, and takes a thousand seconds by the clock that is read here."""
    predicted(monkeypatch, 1e-9)
    epoch = Choice.epoch
    monkeypatch.setattr(Choice, "epoch", lambda self, _, step: epoch(self, 1000.0, step))
    seen = taken(monkeypatch)
    loops = fit(5)
    values(loops)
    assert seen == ["ring", "fabric", "ring", "ring", "ring"]
    auto = loops[0].strategy.details()["auto"]
    assert auto["chosen"] == "ring"
    trial = next(decision for decision in auto["decisions"] if "fabric" in decision["measured"])
    assert trial["chosen"] == "ring"
    assert trial["measured"]["fabric"] == 1000.0
    assert (trial["step"], trial["since"]) == (STEPS + 1, 2 * STEPS + 1)


def test_without_a_gain_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted(monkeypatch, 1000.0)
    seen = taken(monkeypatch)
    loops = fit(4)
    assert seen == ["ring"] * 4
    assert loops[0].strategy.details()["auto"]["decisions"][0]["predicted"]["fabric"] == 1000.0


def resumable(directory: Path, epochs: int, resume: bool = False, **more: Any) -> Fit:
    return Fit(
        directory,
        ChosenByEpoch,
        epochs,
        make=lambda: nn.Linear(3, 1),
        parts=line().cut(60, 60),
        validation=line(40).cut(20, 20),
        batch=12,
        conf=SETTINGS,
        resume=resume,
        **more,
    )


@pytest.mark.parametrize("script", [("ring", "fabric"), ("ring", "ring"), ("ring", "fabric", "ring")])
def test_goes_on_from_a_checkpoint(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: tuple[str, ...]
) -> None:
    """With what had written it."""
    scripted(*script)
    epochs = len(script)
    first = resumable(tmp_path, epochs)
    assert f"step-{epochs * STEPS:08d}" in {path.name for path in tmp_path.iterdir()}
    version = first.loops[0].strategy.version
    scripted("ring")
    seen = taken(monkeypatch)
    rest = resumable(tmp_path, epochs + 2, resume=True)
    assert {restorer.step for restorer in rest.restorers.values()} == {epochs * STEPS}
    assert seen == [script[-1]] * 2
    mine, other = (loop.model.values for loop in rest.loops[:2])
    assert torch.equal(mine, other)
    history = rest.loops[0].progress.history
    assert [row["step"] for row in history] == [STEPS * epoch for epoch in range(1, epochs + 3)]
    begun = first.loops[0].progress.history
    assert [row["val_loss"] for row in history[:epochs]] == [row["val_loss"] for row in begun]
    if script[-1] == "fabric":
        assert rest.loops[0].strategy.version >= version + 2 * 2 * STEPS
    losses = [row["val_loss"] for row in history]
    assert losses[-1] < losses[0]


class Breaks(nn.Linear):
    """In a step of its own choosing, where some rows are."""

    def __init__(self, row: torch.Tensor, step: int) -> None:
        super().__init__(3, 1)
        self.row, self.step, self.calls = row, step, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += bool((self.row == x[0]).all(1).any())
        if self.calls == self.step:
            raise ValueError("this rank has enough")
        return super().forward(x)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("step", [1, 3])
def test_a_rank_fails_in_an_epoch_of_the_fabric(scripted: Any, rank: int, step: int) -> None:
    scripted("ring", "fabric")
    rows = line().cut(40, 40, 40)[rank].features
    with pytest.raises(ValueError, match="this rank has enough"):
        fit(3, make=lambda: Breaks(rows, STEPS + step))


def test_an_optimizer_that_needs_whole_tensors_leaves_it_out() -> None:
    class Wholes(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / (1 + parameter.grad.norm())
            return super().step(closure)

    loops = fit(2, optimizer=functools.partial(Wholes, lr=0.1))
    assert "Wholes" in loops[0].strategy.details()["auto"]["left_out"]["fabric"]


def test_a_synchronized_batch_norm_leaves_it_out() -> None:
    loops = fit(2, make=lambda: nn.Sequential(nn.Linear(3, 1), nn.SyncBatchNorm(1).eval()))
    assert "SyncBatchNorm needs steps" in loops[0].strategy.details()["auto"]["left_out"]["fabric"]


def test_it_is_the_loop_for_it_where_it_is_named() -> None:
    assert strategy_class(CommConf.from_mapping({}, **SETTINGS)) is ChosenByEpoch
    assert strategy_class(CommConf.from_mapping({}, strategy="auto")) is chosen.Chosen
    assert isinstance(fit(1)[0], ChangingLoop)


@pytest.mark.parametrize(
    ("changes", "world", "complaint"),
    [
        ({"fabric_replica": True}, 1, "fabric.replica=true with 1 worker"),
        ({}, 65, "predicted for at most 64 ranks, not 65"),
        ({"fabric_momentum": 0.9}, 4, "fabric.momentum=0.9. Set it to 0"),
        ({"fabric_step_scale": 2.0}, 4, "fabric.stepScale=2. Set it to 0"),
        ({"compression": "topk:0.1"}, 4, "compression=topk:0.1: it sends whole updates"),
    ],
)
def test_what_the_driver_refuses(changes: dict[str, Any], world: int, complaint: str) -> None:
    conf = CommConf.from_mapping({}, **{**SETTINGS, **changes})
    with pytest.raises(ConfError, match=complaint):
        strategy_class(conf).check(conf, world)
