"""Learning-rate schedule: the user's scheduler, stepped per optimizer step or per epoch. Every rank has its own."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim.optimization import Optimization

#: Advice if validation rows are missing.
VALIDATION_ADVICE = "set validationIndicatorCol or validationFraction"

#: Schedulers made for steps: per epoch they would change next to nothing.
_PER_STEP = (OneCycleLR, CyclicLR)


def is_plateau_scheduler(factory: Any) -> bool:
    """Return whether ``factory`` is ReduceLROnPlateau, perhaps with arguments. It returns False for a function that
    creates one.
    """
    while isinstance(factory, functools.partial):
        factory = factory.func
    return isinstance(factory, type) and issubclass(factory, ReduceLROnPlateau)


#: Parameter names for the total number of steps: torch's, and Hugging Face's.
_TOTALS = ("total_steps", "num_training_steps")


def _total_parameter(factory: Any) -> str | None:
    """Return the name of the parameter that takes the total number of steps. None: there is none, or the user has set
    it.

    OneCycleLR's ``epochs`` and ``steps_per_epoch`` together set it, too.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # the factory is not written in Python
        return None
    given = {name for name, of in parameters.items() if of.default is not None and of.default is not of.empty}
    if {"epochs", "steps_per_epoch"} <= given:
        return None
    return next((name for name in _TOTALS if name in parameters and name not in given), None)


class Schedule:
    """Runner of the learning-rate scheduler.

    A factory with a parameter ``total_steps`` or ``num_training_steps`` gets the number of steps that its scheduler
    will take.

    :param steps: optimizer steps per epoch.
    :raises ModelError: the factory does not return a scheduler.
    :raises ConfError: ReduceLROnPlateau is to step per step, when no rank knows the loss over all ranks; or a
        OneCycleLR would end before training does.
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
                f"lr_scheduler: OneCycleLR has total_steps={self._scheduler.total_steps}, and training takes {total}."
                " Leave out total_steps, epochs and steps_per_epoch; fit fills them in."
            )
        if not all(
            callable(getattr(self._scheduler, name, None)) for name in ("step", "state_dict", "load_state_dict")
        ):
            raise ModelError(f"lr_scheduler made a {type(self._scheduler).__name__}, not a scheduler of torch.optim")
        if self.needs_value and self._per_step:
            raise ConfError(
                "lrSchedulerInterval='step': ReduceLROnPlateau needs 'epoch', since its value is known only then"
            )

    @property
    def needs_value(self) -> bool:
        """True if :meth:`after_epoch` needs the monitored value."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    @property
    def is_per_step(self) -> bool:
        return self._scheduler is not None and self._per_step

    def rate(self) -> float:
        """Return the learning rate of the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        if self.is_per_step:
            self._scheduler.step()

    def after_epoch(self, value: float | None = None) -> None:
        """Step the scheduler if it steps per epoch.

        :param value: monitored value for ReduceLROnPlateau, equal on all ranks. Other schedulers need none.
        """
        if self._scheduler is None or self._per_step:
            return
        if self.needs_value:
            self._scheduler.step(value)
        else:
            self._scheduler.step()

    def state(self) -> dict[str, Any] | None:
        return None if self._scheduler is None else self._scheduler.state_dict()

    def load_state(self, state: dict[str, Any] | None) -> None:
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)
