"""An optimizer for a learning-rate scheduler to hold on to, where the one that updates is replaced while training goes on."""

from __future__ import annotations

from typing import Any

import torch


class StandIn(torch.optim.Optimizer):
    """Has the groups of whichever optimizer it stands for, so that what a scheduler sets is what that one updates with."""

    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.empty(0))], {})

    def stand_for(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on; again, if it has loaded a state."""
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing, but torch's schedulers want to have seen it before their own step."""
