"""The user's learning-rate scheduler, stepped per optimizer step or per epoch. Every rank has one over its optimizer."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim.optimization import Optimization

#: What to do where validation rows are missing.
VALIDATE = "set validationIndicatorCol or validationFraction"

#: Made for steps: by epochs they would do next to nothing.
_PER_STEP = (OneCycleLR, CyclicLR)


def watches(factory: Any) -> bool:
    """Whether it is ReduceLROnPlateau, perhaps with arguments; of a function that makes one that is not known."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return isinstance(factory, type) and issubclass(factory, ReduceLROnPlateau)


#: Names by which factories take how often their scheduler will step: torch's, and that of Hugging Face.
_TOTALS = ("total_steps", "num_training_steps")


def _total_parameter(factory: Any) -> str | None:
    """Return the parameter that takes the total of steps; None if there is none, or the user has set it.

    OneCycleLR's ``epochs`` and ``steps_per_epoch`` together set it, too.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # of something that is not written in Python
        return None
    given = {name for name, of in parameters.items() if of.default is not None and of.default is not of.empty}
    if {"epochs", "steps_per_epoch"} <= given:
        return None
    return next((name for name in _TOTALS if name in parameters and name not in given), None)


class Schedule:
    """Steps the learning-rate scheduler. ``steps``: optimizer steps of an epoch. A factory that takes ``total_steps`` or
    ``num_training_steps`` gets how often its scheduler will step.

    :raises ModelError: the factory makes no scheduler.
    :raises ConfError: it makes ReduceLROnPlateau per step, though no rank knows the loss of a step over all ranks; or a
        OneCycleLR that would end before training does.
    """

    def __init__(self, optimization: Optimization, optimizer: torch.optim.Optimizer, steps: int, epochs: int) -> None:
        self._optimizer = optimizer
        interval, factory = optimization.scheduler_interval, optimization.lr_scheduler
        self._per_step = interval == "step"
        self._scheduler: Any = None
        if factory is None:
            return
        total = epochs if interval == "epoch" else steps * epochs
        wants_total = _total_parameter(factory)
        self._scheduler = factory(optimizer) if wants_total is None else factory(optimizer, **{wants_total: total})
        each = [
            self._scheduler,
            *getattr(self._scheduler, "_schedulers", ()),
        ]  # SequentialLR and ChainedScheduler have some
        if interval is None:
            self._per_step = wants_total is not None or any(isinstance(one, _PER_STEP) for one in each)
        if isinstance(self._scheduler, OneCycleLR) and self._scheduler.total_steps < total:
            raise ConfError(
                f"lr_scheduler: OneCycleLR has total_steps={self._scheduler.total_steps}, and training takes {total}:"
                " leave out total_steps, epochs and steps_per_epoch, and it gets them"
            )
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

    @property
    def is_per_step(self) -> bool:
        return self._scheduler is not None and self._per_step

    def rate(self) -> float:
        """Learning rate of the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        if self.is_per_step:
            self._scheduler.step()

    def after_epoch(self, value: float | None = None) -> None:
        """``value``: what ReduceLROnPlateau watches, equal on all ranks; others need none."""
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
