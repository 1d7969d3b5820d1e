"""The user's learning-rate scheduler, stepped per optimizer step or per epoch. Every rank has one over its optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.train.spec import Optimization


class Schedule:
    """Raises ModelError if the factory makes no scheduler, ConfError for ReduceLROnPlateau per step: the loss of a step over
    all ranks is known to none of them."""

    def __init__(self, optimization: Optimization, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._per_step = optimization.scheduler_interval == "step"
        self._scheduler: Any = None
        if optimization.lr_scheduler is None:
            return
        self._scheduler = optimization.lr_scheduler(optimizer)
        if not all(
            callable(getattr(self._scheduler, name, None)) for name in ("step", "state_dict", "load_state_dict")
        ):
            raise ModelError(f"lr_scheduler made a {type(self._scheduler).__name__}, not a scheduler of torch.optim")
        if self.watches and self._per_step:
            raise ConfError(
                "lrSchedulerInterval='step': ReduceLROnPlateau needs 'epoch', at whose end its value is known"
            )

    @property
    def watches(self) -> bool:
        """Whether :meth:`after_epoch` needs the value."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    def rate(self) -> float:
        """Learning rate of the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        if self._scheduler is not None and self._per_step:
            self._scheduler.step()

    def after_epoch(self, value: float | None = None) -> None:
        """`value`: what ReduceLROnPlateau watches, equal on all ranks; others need none."""
        if self._scheduler is None or self._per_step:
            return
        if self.watches:
            self._scheduler.step(value)
        else:
            self._scheduler.step()

    def state(self) -> dict[str, Any] | None:
        return None if self._scheduler is None else self._scheduler.state_dict()

    def load_state(self, state: dict[str, Any] | None) -> None:
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)
