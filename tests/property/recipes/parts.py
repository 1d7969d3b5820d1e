"""Parts of models, of dense layers: used by all rows, by some or by none; trained or not; computed again in backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


class Hooked(Dense):
    """Layer with a hook of the user's on a gradient."""

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
