"""Proxy of an optimizer for a learning-rate scheduler, if the actual optimizer is replaced during training."""

from __future__ import annotations

from typing import Any

import torch


class OptimizerProxy(torch.optim.Optimizer):
    """Optimizer proxy that shares the groups of the current optimizer, so that the scheduler's changes take effect
    there.
    """

    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.empty(0))], {})

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Share the groups of ``optimizer`` from now on. Call it again after ``optimizer`` has loaded a state."""
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: torch's schedulers expect this call before their own step."""
