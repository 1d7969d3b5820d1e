"""What every strategy promises, whatever its name: the contract of :class:`sparkdl_comm.strategies.base.Strategy`.

Ranks are threads here. Strategies that need a JVM, processes or a torch.distributed group per rank keep the same contract in
``tests/property/test_recipe_fuzz.py``, ``tests/integration`` and ``tests/gpu``.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf.compression import COMPRESSIONS
from sparkdl_comm.strategies.registry import STRATEGIES
from tests.slow import slow_unless
from tests.unit.ranks import Rows, train
from tests.ways import Way, one_of_each_kind, ways

PARTS = (11, 0, 13)
WORLD = len(PARTS)
EPOCHS = 4
ALL = list(ways(WORLD))
THREADED = [way for way in ALL if way.runs_in_threads]
KINDS = one_of_each_kind(THREADED)
EVERY = pytest.mark.parametrize("way", slow_unless(KINDS.__contains__, THREADED), ids=lambda way: way.name)
MOMENTUM = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Net(nn.Module):
    """Three layers; the second is used by every other step, the third never."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 9)
        self.head = nn.Linear(9, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.tanh(self.first(x))
        self.calls += self.training
        return self.head(out + torch.tanh(self.second(out)) if self.calls % 2 else out)


def table() -> Rows:
    random = torch.Generator().manual_seed(3)
    return Rows(torch.randn(24, 6, generator=random), torch.randn(24, generator=random))


def fit(way: Way, epochs: int = EPOCHS, **more: Any) -> Any:
    settings = {**way.settings, "collective.bucket": "256B"}  # several buckets
    return train(
        Net, table().cut(*PARTS), strategy=way.strategy, settings=settings, epochs=epochs, optimizer=MOMENTUM, **more
    )


@functools.cache
def trained_alone() -> list[torch.Tensor]:
    """Parameters that one process ends with, trained on all rows."""
    torch.manual_seed(5)
    module, data = Net(), table()
    optimizer = MOMENTUM(module.parameters())
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        (module(data.features).squeeze(1) - data.targets).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


def parameters(loops: Any) -> list[list[torch.Tensor]]:
    return [[parameter.detach() for parameter in loop.model.module.parameters()] for loop in loops]


def test_all_entries_of_the_registries_are_tried() -> None:
    words = {word for way in ALL for word in way.name.split()}
    assert words >= {*STRATEGIES, *ALGORITHMS, *(f"{operator}:1" for operator in COMPRESSIONS)}
    assert {way.settings["strategy"] for way in THREADED} >= set(ALGORITHMS)


@pytest.mark.parametrize(
    "way",
    slow_unless(lambda way: way in KINDS or "compression" not in way.settings, THREADED),
    ids=lambda way: way.name,
)
def test_training_ends_as_in_one_process(way: Way) -> None:
    ranks = parameters(fit(way))
    for others in ranks[1:]:
        assert all(map(torch.equal, ranks[0], others)), "ranks differ"
    if way.is_lossless:
        for theirs, expected in zip(ranks[0], trained_alone(), strict=True):
            torch.testing.assert_close(theirs, expected, rtol=1e-5, atol=1e-6)


@EVERY
def test_owned_values_cover_the_model_once(way: Way) -> None:
    """Without sharding every rank owns all values."""
    ranges: dict[int, list[tuple[int, int]]] = {}

    def look(loop: Any) -> None:
        owned = loop.strategy.owned()
        assert all(values.dtype == torch.float32 and values.dim() == 1 for _, values in owned)
        ranges[loop.strategy._gang.rank] = [(first, first + len(values)) for first, values in owned]

    count = fit(way, epochs=1, finish=look)[0].model.count
    everybody = [sum(ranges.values(), [])] if way.strategy.is_sharded else list(ranges.values())
    for owned in everybody:
        ends = [end for _, end in sorted(owned)]
        assert [begin for begin, _ in sorted(owned)] == [0, *ends[:-1]]
        assert ends[-1] == count


@EVERY
def test_training_goes_on_from_its_state(way: Way) -> None:
    """Two epochs and two more, from what a checkpoint keeps, end with the bits of four."""
    kept: dict[int, Any] = {}

    def keep(loop: Any) -> None:
        strategy = loop.strategy
        values = [(first, values.clone()) for first, values in strategy.owned()]
        state = copy.deepcopy((strategy.optimizer_state(), loop.state(), loop.model.module.calls))
        kept[strategy._gang.rank] = (values, *state)

    def restore(spec: Any, gang: Any, model: Any) -> None:
        for values, *_ in kept.values():
            for first, theirs in values:
                model.load(first, theirs)

    def go_on(loop: Any) -> None:
        _, optimizer, state, calls = kept[loop.strategy._gang.rank]
        loop.strategy.load_optimizer_state(optimizer)
        loop.load_state(state)
        loop.model.module.calls = calls

    whole = parameters(fit(way))
    fit(way, epochs=EPOCHS // 2, finish=keep)
    resumed = parameters(fit(way, arrive=restore, prepare=go_on))
    assert all(map(torch.equal, whole[0], resumed[0]))


@pytest.mark.parametrize(
    "way",
    slow_unless(KINDS.__contains__, [way for way in THREADED if "compression" not in way.settings]),
    ids=lambda way: way.name,
)
def test_a_rank_that_fails_ends_all(way: Way) -> None:
    def fail(loop: Any) -> None:
        if loop.strategy._gang.rank == 2:
            loop.after_step = stop

    def stop(loop: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fit(way, prepare=fail)
