"""The models of recipes: a chain of parts, each of which maps ``[rows, WIDTH]`` to as many, between two dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .recipe import Recipe

#: A weight has more elements than a cache line, which strategy ps does not cut.
WIDTH = 6
#: Of the ids that embeddings look up.
IDS = 8
#: Of the features: a flag, a number that is not negative, and WIDTH more.
FLAG, ROOT, FEATURES = 0, 1, 2 + WIDTH


class Part(nn.Module):
    """``forward(h, x, ids)``: ``h`` of the part before, ``x`` the features, ``ids`` int64 ``[rows]`` (None without any part
    that takes them)."""

    needs_ids = False


class Dense(Part):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + torch.tanh(self.linear(h))


class Shared(Dense):
    """One layer, used twice."""

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return super().forward(super().forward(h, x, ids), x, ids)


class Tied(Part):
    """Two layers with one weight, as embedding and output of a language model have."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.two.weight = self.one.weight

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + self.two(torch.tanh(self.one(h)))


class Frozen(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class HalfFrozen(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.linear.bias.requires_grad_(False)


class Unused(Dense):
    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h


class Detached(Dense):
    """Used, but no gradient comes back."""

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        with torch.no_grad():
            told = self.linear(h)
        return h + told


class Nullified(Dense):
    """Its gradient is there, and zero."""

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + 0.0 * self.linear(h)


class Rare(Dense):
    """For flagged rows only: in some steps, on some ranks, nobody uses it."""

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        flagged = x[:, FLAG] > 0
        if not flagged.any():
            return h
        return torch.where(flagged[:, None], h + torch.tanh(self.linear(h)), h)


class Routed(Part):
    """Two experts: each row goes to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        result = h
        for number, expert in enumerate(self.experts):
            mine = (x[:, FLAG] > 0) == bool(number)
            if mine.any():
                result = torch.where(mine[:, None], h + torch.tanh(expert(h)), result)
        return result


class Checkpointed(Dense):
    """Its activations are computed again in backward."""

    reentrant = False

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        again: torch.Tensor = checkpoint(super().forward, h, x, ids, use_reentrant=self.reentrant)
        return again


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class CheckpointedShared(Checkpointed):
    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return super().forward(super().forward(h, x, ids), x, ids)


class CheckpointedSharedReentrant(CheckpointedShared):
    """Backward accumulates the layer's gradient twice."""

    reentrant = True


class Constants(Part):
    """Buffers that decide about the output, one of which is not in the state."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(WIDTH) + 0.5)
        self.register_buffer("shift", torch.linspace(-1, 1, WIDTH), persistent=False)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h * self.scale + self.shift


class Tracker(Part):
    """Buffers that training changes: how many batches there were, and a running mean of the features."""

    count: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(FEATURES))

    def track(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            self.count += 1
            self.mean.lerp_(x.float().mean(0), 0.5)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        if self.training:
            self.track(x)
        return h


class ExtraDict(Part):
    """State that is neither parameter nor buffer: a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "by": ["rows"]}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        self.seen = 3
        return h


class ExtraTensor(ExtraDict):
    """As a tensor, made when it is asked for."""

    def get_extra_state(self) -> Any:
        return torch.tensor([float(self.seen), 1.0])

    def set_extra_state(self, state: Any) -> None:
        self.seen = int(state[0])


class Embedded(Part):
    needs_ids = True
    sparse = False
    padding: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(IDS, WIDTH, padding_idx=self.padding, sparse=self.sparse)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + self.table(ids)


class EmbeddedPadding(Embedded):
    padding = 0


class EmbeddedSparse(Embedded):
    sparse = True


class EmbeddedBag(Part):
    needs_ids = True

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(IDS, WIDTH, mode="sum")

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + self.table(ids[:, None])


class Normed(Part):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return self.norm(h)


class WeightNormed(Dense):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.linear)


class Odd(Part):
    """A number, an empty parameter, and one whose memory is not in the order of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter((torch.randn(WIDTH, WIDTH) / 2).t())

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + self.scale * torch.tanh(h @ self.turned) + self.nothing.sum()


class Hooked(Dense):
    """With a hook of the user's on a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear.weight.register_hook(lambda gradient: 0.5 * gradient)


class Rooted(Part):
    """The gradient is NaN where the feature is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + torch.sqrt(self.scale.abs() * x[:, ROOT : ROOT + 1])


class Skip(Part):
    """Adds to the model's output, past the bounds that the rest has: infinite in fp16 where a feature is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)

    def direct(self, x: torch.Tensor) -> torch.Tensor:
        told: torch.Tensor = self.linear(x[:, 2:])
        return told

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h


PARTS: dict[str, Callable[[], Part]] = {
    "dense": Dense,
    "shared": Shared,
    "tied": Tied,
    "frozen": Frozen,
    "half frozen": HalfFrozen,
    "unused": Unused,
    "detached": Detached,
    "nullified": Nullified,
    "rare": Rare,
    "routed": Routed,
    "checkpointed": Checkpointed,
    "checkpointed re-entrant": CheckpointedReentrant,
    "checkpointed shared": CheckpointedShared,
    "checkpointed shared re-entrant": CheckpointedSharedReentrant,
    "constants": Constants,
    "tracker": Tracker,
    "extra dict": ExtraDict,
    "extra tensor": ExtraTensor,
    "embedded": Embedded,
    "embedded with padding": EmbeddedPadding,
    "embedded sparse": EmbeddedSparse,
    "embedded bag": EmbeddedBag,
    "normed": Normed,
    "weight normed": WeightNormed,
    "odd": Odd,
    "hooked": Hooked,
    "rooted": Rooted,
    "skip": Skip,
}


class Net(nn.Module):
    def __init__(self, parts: tuple[str, ...], outputs: int) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList([PARTS[name]() for name in parts])
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        h = torch.tanh(self.stem(x[:, 2:]))
        for part in self.parts:
            h = part(h, x, ids)
        y = self.head(torch.tanh(h))
        for part in self.parts:
            if isinstance(part, Skip):
                y = y + part.direct(x)
        return y


def outputs(recipe: Recipe) -> int:
    return {"mse": 1, "huber": 1, "own": 1, "mse of two": 2}.get(recipe.loss, 3)


def takes_ids(recipe: Recipe) -> bool:
    return any(getattr(PARTS[name], "needs_ids", False) for name in recipe.parts)


def build(recipe: Recipe) -> Net:
    """The model; torch's generator decides about its weights."""
    net = Net(recipe.parts, outputs(recipe))
    if recipe.frozen:
        net.stem.requires_grad_(False)
        net.head.requires_grad_(False)
    return net


def seeded(recipe: Recipe) -> Net:
    """As all ranks have it, before training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return build(recipe)
