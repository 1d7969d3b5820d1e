"""The models of recipes: a chain of parts, each of which maps ``[rows, WIDTH]`` to as many, between two dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .layers import (
    Constants,
    Embedded,
    EmbeddedBag,
    EmbeddedPadding,
    EmbeddedSparse,
    ExtraDict,
    ExtraTensor,
    Normed,
    Odd,
    Tracker,
    WeightNormed,
)
from .parts import (
    FEATURES,
    WIDTH,
    Checkpointed,
    CheckpointedReentrant,
    CheckpointedShared,
    CheckpointedSharedReentrant,
    Dense,
    Detached,
    Frozen,
    HalfFrozen,
    Hooked,
    Nullified,
    Part,
    Rare,
    Rooted,
    Routed,
    Shared,
    Skip,
    Tied,
    Unused,
)
from .recipe import Recipe
from .stateful import Adjacent, Aliased, Drawn, Late, Momentum, Thawed

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
    "momentum": Momentum,
    "late buffers": Late,
    "drawn": Drawn,
    "aliased": Aliased,
    "adjacent": Adjacent,
    "thawed": Thawed,
}


class Attributes(dict[str, torch.Tensor]):
    """A mapping with attributes, as a Hugging Face ModelOutput."""

    @property
    def logits(self) -> torch.Tensor:
        return self["logits"]


#: What a model may return: a tensor; beside it one more with rows, in a tuple or a dict; the state of a recurrent layer,
#: [layers, rows, …]; None; a scalar. The logits of Attributes count as a tensor.
RETURNS = ("tensor", "pair", "dict", "state", "none", "scalar", "logits")


def main_output(output: Any) -> torch.Tensor:
    """What the loss takes."""
    if isinstance(output, dict):
        output = output.get("scores", output.get("logits"))
    found: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return found


class Net(nn.Module):
    def __init__(self, parts: tuple[str, ...], outputs: int, returns: str = "tensor") -> None:
        super().__init__()
        self.returns = returns
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList([PARTS[name]() for name in parts])
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None = None) -> Any:
        x = (x.to_dense() if x.is_sparse else x)[:, :FEATURES]
        h = torch.tanh(self.stem(x[:, 2:]))
        for part in self.parts:
            h = part(h, x, ids)
        y = self.head(torch.tanh(h))
        for part in self.parts:
            if isinstance(part, Skip):
                y = y + part.direct(x)
        return {
            "tensor": y,
            "pair": (y, h),
            "dict": {"scores": y, "hidden": h},
            "state": (y, h[None]),
            "none": (y, None),
            "scalar": {"scores": y, "balance": h.float().square().sum()},
            "logits": Attributes(logits=y, hidden=h),
        }[self.returns]


def outputs(recipe: Recipe) -> int:
    return {"mse": 1, "huber": 1, "own": 1, "scaled": 1, "mse of two": 2}.get(recipe.loss, 3)


def takes_ids(recipe: Recipe) -> bool:
    return any(getattr(PARTS[name], "needs_ids", False) for name in recipe.parts)


def build(recipe: Recipe) -> Net:
    """The model; torch's generator decides about its weights."""
    net = Net(recipe.parts, outputs(recipe), recipe.returns)
    if recipe.frozen:
        net.stem.requires_grad_(False)
        net.head.requires_grad_(False)
    return net


def seeded(recipe: Recipe) -> Net:
    """As all ranks have it, before training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return build(recipe)
