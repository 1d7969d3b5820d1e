"""Parts of models whose state no optimizer updates, or whose memory or training is unusual."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import torch
from torch import nn

from .parts import WIDTH, Dense, Part

#: In the environment of a rank's process: its number, by which parts draw other values on each.
RANK = "SPARKDL_RECIPE_RANK"


class Moving(Part):
    """State that each forward pass in training changes, on each rank by itself. The reference computes the rows of each rank
    with that rank's."""

    def move(self) -> None:
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state, by name."""
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: tensor for name, tensor in self.state_dict(keep_vars=True).items() if name not in trained}

    def take(self, tensors: dict[str, torch.Tensor]) -> None:
        """``tensors``: of another's :meth:`tensors`."""
        for name, tensor in tensors.items():
            prefix, _, leaf = name.rpartition(".")
            owner = self.get_submodule(prefix)
            if isinstance(owner._parameters.get(leaf), nn.Parameter):
                owner._parameters[leaf].data = tensor.detach().clone()  # type: ignore[union-attr]
            else:
                owner.register_buffer(leaf, tensor.detach().clone())

    def forget(self) -> None:
        """Drop the state that the part did not have when it was made."""


class Momentum(Moving, Dense):
    """Has a frozen copy of its layer, which forward moves towards the trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = copy.deepcopy(self.linear).requires_grad_(False)

    @torch.no_grad()
    def move(self) -> None:
        for slow, fast in zip(self.slow.parameters(), self.linear.parameters(), strict=True):
            slow.lerp_(fast, 0.3)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        if self.training:
            self.move()
        return super().forward(h, x, ids) + torch.tanh(self.slow(h))


class Late(Moving):
    """A buffer that the first forward pass registers, and one that grows."""

    grown: torch.Tensor | None
    late: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grown", None)

    @torch.no_grad()
    def move(self) -> None:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(()))
        self.late += 1
        self.grown = torch.ones(1) if self.grown is None else torch.cat([self.grown, torch.ones(1)])

    def forget(self) -> None:
        self.grown = None
        if hasattr(self, "late"):
            del self.late

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        if self.training:
            self.move()
        assert self.grown is not None
        return h * (1 + 0.01 * self.late) + 0.01 * self.grown.sum()


class Drawn(Part):
    """A layer, a frozen one and a buffer that numpy draws, otherwise on each rank."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng([7, int(os.environ.get(RANK, "0"))])

        def draw(*shape: int) -> torch.Tensor:
            return torch.from_numpy(random.normal(size=shape).astype(np.float32) / 2)

        self.linear = nn.Parameter(draw(WIDTH, WIDTH))
        self.frozen = nn.Parameter(draw(WIDTH, WIDTH), requires_grad=False)
        self.register_buffer("scale", draw(WIDTH))

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h * self.scale + torch.tanh(h @ self.linear) @ self.frozen


class Aliased(Part):
    """Two parameters that share memory, each its own to torch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.two.weight.data = self.one.weight.data.t()

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        return h + self.two(torch.tanh(self.one(h)))


class Adjacent(Aliased):
    """Two parameters that lie in turns in one storage."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.randn(WIDTH, 2 * WIDTH) / 2
        self.one.weight.data, self.two.weight.data = both[:, ::2], both[:, 1::2]


class Thawed(Dense):
    """A frozen layer that the first forward pass in training unfreezes, of which no optimizer knows."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)

    def forward(self, h: torch.Tensor, x: torch.Tensor, ids: Any) -> torch.Tensor:
        if self.training:
            self.requires_grad_(True)
        return super().forward(h, x, ids)
