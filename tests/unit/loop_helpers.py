"""A small model and its rows, dealt to three ranks, one of them empty; and plain torch in one process to compare with."""

from typing import Any

import pytest
import torch
from torch import nn

from .ranks import Gathered, Rows, Sharded

ROWS, PARTS = 24, (11, 0, 13)
BOTH = pytest.mark.parametrize("strategy", [Gathered, Sharded])


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))


def table(*, weights: bool = False, integers: bool = False) -> Rows:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(ROWS, 6, generator=random)
    if integers:
        features = torch.randint(0, 50, (ROWS, 6), generator=random)
    weight = torch.rand(ROWS, generator=random) + 0.1
    return Rows(features, torch.randn(ROWS, generator=random), weight / weight.mean() if weights else None)


def reference(
    make: Any, data: Rows, steps: int, clip: float | None = None, groups: Any = None, rate: Any = None
) -> Any:
    torch.manual_seed(5)
    module = make()
    optimizer = torch.optim.SGD(groups(module) if groups else module.parameters(), lr=0.1, momentum=0.9)
    scheduler = rate(optimizer) if rate else None
    for _ in range(steps):
        optimizer.zero_grad()
        losses = (module(data.features).squeeze(1) - data.targets) ** 2
        (losses if data.weights is None else losses * data.weights).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return module


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def assert_same(loops: Any, module: nn.Module) -> None:
    expected = nn.utils.parameters_to_vector(module.parameters())
    torch.manual_seed(5)
    start = nn.utils.parameters_to_vector(type(module)().parameters())
    assert (expected - start).norm() / start.norm() > 1e-2, "training changed nothing, so the comparison shows nothing"
    for loop in loops:
        got = nn.utils.parameters_to_vector(loop.model.module.parameters())
        assert (got - expected).norm() / expected.norm() <= 1e-5
