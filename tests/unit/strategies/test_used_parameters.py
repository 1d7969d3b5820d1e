"""Steps that do not use every parameter once: the same as torch in one process, whatever sums the gradients up."""

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparkdl_comm.errors import ModelError
from sparkdl_comm.optim import LAMB, LARS
from tests.slow import slow, slow_unless
from tests.unit.ranks import Gathered, Rows, Sharded, train
from tests.ways import Way, one_of_each_kind, ways

PARTS = (11, 0, 13)
EPOCHS = 7


RING = Way("ring", {"strategy": "ring"})
LP_ROOT = Way("lp root", {"strategy": "lp", "collective.loop": "root"})
#: Ways that do what others do, by another algorithm or after a choice.
SLOW = ("auto all-reduce", "auto all-reduce exact:1", "auto root", "hitopk all-reduce exact:1")
ALL = pytest.mark.parametrize(
    "way",
    [
        Gathered,
        Sharded,
        *slow_unless(
            lambda way: way.name not in SLOW,
            one_of_each_kind(way for way in ways(len(PARTS)) if way.runs_in_threads and way.is_lossless),
        ),
        *(way for way in ways(len(PARTS)) if way.name == "lp decoupled"),
        *(slow(way) for way in ways(len(PARTS)) if way.name == "mst decoupled"),
    ],
    ids=lambda way: way.name if isinstance(way, Way) else way.__name__.lower(),
)


def fit(way: Any, make: Any, data: Rows, **more: Any) -> Any:
    return train(make, data.cut(*PARTS), **{"epochs": EPOCHS, **more, **of(way)})


def of(way: Any) -> dict[str, Any]:
    """What ``train`` takes for a way, every parameter in a bucket of its own, or for a strategy of the tests."""
    if isinstance(way, Way):
        return {"strategy": way.strategy, "settings": {**way.settings, "collective.bucket": "4B"}}
    return {"strategy": way}


class Sometimes(nn.Module):
    """A layer that is never used, one that every third step uses, and one that is used for some rows only."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(6, 6)
        self.body = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)
        self.few = nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.tanh(self.body(x))
        if self.training:
            self.calls += 1
        if self.calls % 3 == 0:
            out = out + self.third(x)
        few = (x[:, 0] > 1.0).nonzero().flatten()
        if len(few):
            out = out.index_add(0, few, self.few(x[few]))
        return self.head(out)


class Twice(nn.Module):
    """A layer used twice, in segments whose backward passes run inside of the whole one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.first(x)
        for _ in range(2):
            out = checkpoint(lambda seen: torch.tanh(self.shared(seen)), out, use_reentrant=True)
        return self.head(out)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(50, 3, sparse=True), nn.Embedding(50, 1, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x).sum((1, 2)))[:, None] + self.second(x[:, :1]).squeeze(1)


def table(*, words: bool = False) -> Rows:
    random = torch.Generator().manual_seed(3)
    features = torch.randint(0, 50, (24, 6), generator=random) if words else torch.randn(24, 6, generator=random)
    features[:13, 0] = 0  # the first ranks never use the layer for some rows
    return Rows(features, torch.randn(24, generator=random))


def alone(make: Any, data: Rows, optimizer: Any) -> nn.Module:
    """Trained on all rows at once in this process."""
    torch.manual_seed(5)
    module = make()
    made = optimizer(module.parameters())
    for _ in range(EPOCHS):
        made.zero_grad()
        (module(data.features).squeeze(1) - data.targets).square().mean().backward()
        made.step()
    return module


def assert_same(loops: Any, expected: nn.Module) -> None:
    for loop in loops:
        for (name, theirs), wanted in zip(loop.model.module.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(
                theirs, wanted, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


@ALL
@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5),
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        functools.partial(LARS, lr=0.5, momentum=0.9, weight_decay=0.2, trust_coefficient=0.1),
        functools.partial(LARS, lr=0.5, momentum=0.9, trust_coefficient=0.1, parallel=True),
        functools.partial(LAMB, lr=0.05, weight_decay=0.5),
        functools.partial(LAMB, lr=0.05, weight_decay=0.5, parallel=True),
    ],
)
@pytest.mark.slow
def test_what_no_rank_used_stays_as_it_is(way: Any, optimizer: Any) -> None:
    data = table()
    assert_same(fit(way, Sometimes, data, optimizer=optimizer), alone(Sometimes, data, optimizer))


@ALL
def test_a_layer_whose_gradient_comes_in_rounds(way: Any) -> None:
    data, optimizer = table(), functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    assert_same(fit(way, Twice, data, optimizer=optimizer), alone(Twice, data, optimizer))


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("way", [RING, LP_ROOT], ids=lambda way: way.name)
def test_sparse_adam_leaves_rows_that_no_rank_used(way: Way, accumulation: int) -> None:
    data, optimizer = table(words=True), functools.partial(torch.optim.SparseAdam, lr=0.05)
    loops = fit(way, Words, data, optimizer=optimizer, accumulation_steps=accumulation, batch=24 // accumulation)
    assert_same(loops, alone(Words, data, optimizer))


@pytest.mark.parametrize(
    ("way", "optimizer", "complaint"),
    [
        (RING, torch.optim.Adam, "Adam takes no sparse gradients .*sparse=False"),
        (RING, functools.partial(torch.optim.Adagrad, weight_decay=0.1), "Adagrad takes no sparse gradients"),
        (Sharded, torch.optim.Adam, "Adam takes no sparse gradients .*sparse=False"),
        (Sharded, torch.optim.SparseAdam, "SparseAdam .*Set ring"),
    ],
)
def test_optimizers_that_take_no_sparse_gradients(way: Any, optimizer: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        fit(way, Words, table(words=True), optimizer=optimizer, epochs=3)


def test_rounds_that_begin_after_the_first_step_are_refused() -> None:
    class Later(Twice):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) if self.calls > 2 else self.head(torch.tanh(self.shared(self.first(x))))

    with pytest.raises(ModelError, match="made a gradient a second time .* Pass use_reentrant=False"):
        fit(RING, Later, table())
