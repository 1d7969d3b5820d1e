"""What users have called while ranks train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sparkdl_comm.errors import CallbackError
from sparkdl_comm.train.loop.parameter_guard import ParameterGuard


@dataclass
class TrainingState:
    """What a callback sees, on one rank.

    ``epoch``: the current or last one, from 1. ``step``: optimizer steps done, over all epochs. ``loss``: in
    ``on_step_end`` the mean over this rank's rows in the step (None: it had none); afterwards the epoch's, over all ranks.
    ``metrics``: the last epoch's row of the history. ``module``: being trained. With strategies ``gloo``, ``nccl`` and
    collectives that all-reduce, a hook may change its parameters, on all ranks alike; with others that is refused. A hook may
    freeze and unfreeze parameters (``requires_grad``) that required a gradient when the model was made.
    """

    rank: int
    world: int
    module: torch.nn.Module
    epoch: int = 0
    step: int = 0
    loss: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    stop_requested: bool = False

    def stop(self) -> None:
        """End training with this epoch. It is enough if one rank asks for it."""
        self.stop_requested = True


class Callback:
    """Base of callbacks; every hook does nothing. Each rank has a copy of its own, and calls it in the order of the list.

    In ``on_step_end`` under strategy ps, or with ``collective.loop`` other than all-reduce, parameters are on their way to the
    next version: look at them in the other hooks.
    What a hook keeps is part of a checkpoint if :meth:`state_dict` gives it: numbers, strings, lists, dicts, tensors.
    """

    def on_train_begin(self, state: TrainingState) -> None:
        """Before the first step, and before the first after a restart."""

    def on_epoch_begin(self, state: TrainingState) -> None:
        """Before the first step of an epoch, and before the first after a restart."""

    def on_step_end(self, state: TrainingState) -> None:
        """After each optimizer step."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """After validation; the module is complete and in train mode."""

    def on_train_end(self, state: TrainingState) -> None:
        """With the final parameters, the best ones if these are restored."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After a restart, before ``on_train_begin``."""


class Callbacks:
    """Calls hooks, and names the one that raises. False if there are none."""

    def __init__(self, callbacks: Sequence[Callback], state: TrainingState, guard: ParameterGuard) -> None:
        self._callbacks, self._guard = callbacks, guard
        self.state = state

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def call(self, hook: str, **changes: Any) -> None:
        """Calls ``hook`` of each with the state, after ``changes`` to it.

        :raises CallbackError: one raises, or changes parameters where it may not.
        """
        for name, value in changes.items():
            setattr(self.state, name, value)
        for callback in self.having(hook):
            method: Callable[[TrainingState], None] = getattr(callback, hook)
            called = f"callback {type(callback).__name__}.{hook}"
            # After a step they are on their way; when training is over the strategy has ended, and all are here.
            where = f"{called} on rank {self.state.rank} at step {self.state.step}"
            with self._guard.around(where, complete=hook != "on_step_end", over=hook == "on_train_end"):
                try:
                    method(self.state)
                except Exception as exc:
                    raise CallbackError(
                        f"{called} raised {type(exc).__name__} on rank {self.state.rank} at step {self.state.step}: {exc}",
                        rank=self.state.rank,
                        step=self.state.step,
                        phase="callback",
                    ) from exc

    def having(self, hook: str) -> list[Callback]:
        """Return the callbacks that do something in ``hook``."""
        nothing = getattr(Callback, hook)
        return [each for each in self._callbacks if getattr(getattr(each, hook), "__func__", None) is not nothing]

    def saved(self) -> dict[str, Any]:
        return {"stop": self.state.stop_requested, "each": [callback.state_dict() for callback in self._callbacks]}

    def load(self, saved: dict[str, Any]) -> None:
        self.state.stop_requested = saved["stop"]
        for callback, state in zip(self._callbacks, saved["each"], strict=True):
            callback.load_state_dict(state)
