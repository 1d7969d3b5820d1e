"""Parts of models that are more than dense layers: with buffers or other state, embeddings, norms, odd parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .parts import FEATURES, IDS, WIDTH, Dense, Part


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
