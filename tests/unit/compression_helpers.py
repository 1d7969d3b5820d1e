"""Fits with compression, by four ranks in threads over real sockets, and what all of them hold."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.compress.selection import OPERATORS
from sparkdl_comm.conf import CommConf
from sparkdl_comm.strategies.registry import strategy_class
from tests.unit.ranks import Rows, train


def watched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of operators that have selected since."""
    ran: set[str] = set()

    def watching(name: str, choose: Any) -> Any:
        def chosen(*given: Any) -> torch.Tensor:
            ran.add(name)
            return choose(*given)

        return chosen

    for name, made in OPERATORS.items():
        monkeypatch.setitem(OPERATORS, name, replace(made, choose=watching(name, made.choose)))
    return ran


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 1))


class Sometimes(nn.Module):
    """A layer that is never used, and one that only some rows use, those of the last rank."""

    def __init__(self) -> None:
        super().__init__()
        self.never, self.body, self.few, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.tanh(self.body(x))
        few = (x[:, 0] > 1.0).nonzero().flatten()
        return self.head(out.index_add(0, few, self.few(x[few])) if len(few) else out)


def table() -> Rows:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(24, 6, generator=random)
    features[:18, 0] = 0
    return Rows(features, torch.randn(24, 1, generator=random))


def trained(make: Any, settings: dict[str, Any], epochs: int = 5, **more: Any) -> list[Any]:
    strategy = strategy_class(CommConf.from_mapping({}, **settings))
    return train(make, table().cut(7, 5, 6, 6), strategy=strategy, conf=settings, epochs=epochs, **more)


def values(loops: list[Any]) -> torch.Tensor:
    """The parameters, which are the same bits on all ranks."""
    for loop in loops[1:]:
        assert torch.equal(loop.model.values, loops[0].model.values)
    return loops[0].model.values.clone()


def with_skipped_steps(settings: dict[str, Any]) -> list[Any]:
    """Trained in fp16, with a scale of the loss that begins so large that the first steps overflow and are skipped."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.float() - target).square().mean() * 1e3

    loops = trained(net, settings, 12, loss=loss, precision="fp16", optimizer=lambda p: torch.optim.SGD(p, lr=1e-5))
    values(loops)
    history = loops[0].progress.history
    assert any(row["skipped_steps"] for row in history), "the test must show what it claims"
    assert not history[-1]["skipped_steps"]
    return loops


def assert_what_no_rank_used_stays(settings: dict[str, Any]) -> None:
    """Though the optimizer lets all weights decay; and what one rank used does not stay."""
    loops = trained(Sometimes, settings, optimizer=functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5))
    values(loops)
    torch.manual_seed(5)
    begun, now = Sometimes(), loops[0].model.module
    assert torch.equal(now.never.weight, begun.never.weight)
    assert not torch.equal(now.few.weight, begun.few.weight)


def assert_training_goes_on(settings: dict[str, Any], kept_as: str) -> None:
    """From a checkpoint, with the same bits; ``kept_as``: tensors of the strategy's state without which they are others."""
    kept: dict[int, Any] = {}
    whole = values(trained(net, settings, 4))
    half = values(trained(net, settings, 2, finish=lambda at: kept.update({at.strategy._gang.rank: at.state()})))

    def goes_on(at: Any) -> None:
        at.load_state(kept[at.strategy._gang.rank])

    begins = {"arrive": lambda spec, gang, model: model.load(0, half), "prepare": goes_on}
    assert torch.equal(values(trained(net, settings, 4, **begins)), whole)
    for state in kept.values():
        for tensor in state["own"]["strategy"][kept_as].values():
            tensor.zero_()[:1] = 1  # not 0 alone, which is no column to begin with
    assert not torch.equal(values(trained(net, settings, 4, **begins)), whole)
