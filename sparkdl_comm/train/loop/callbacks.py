"""Callbacks: user code that runs on the ranks during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sparkdl_comm.errors import CallbackError
from sparkdl_comm.train.loop.parameter_guard import ParameterGuard


@dataclass
class TrainingState:
    """State of training on one rank, as callbacks see it.

    With strategies ``gloo``, ``nccl`` and collectives that all-reduce, a hook may change the module's parameters,
    equally on all ranks. With other strategies such a change raises an error, and NumPy arrays of parameters
    (``parameter.detach().numpy()``) are read-only. A hook may freeze and unfreeze parameters (``requires_grad``) that
    required a gradient when the model was made.

    :param module: the module in training.
    :param epoch: the current or last epoch, from 1.
    :param step: optimizer steps done, over all epochs.
    :param loss: in ``on_step_end`` the mean over this rank's rows of the step (None: it had none); afterwards the
        epoch's mean over all ranks.
    :param metrics: the last epoch's row of the history.
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
        """End training after this epoch. One rank's request is enough."""
        self.stop_requested = True


class Callback:
    """Base class of callbacks. Every hook does nothing by default.

    Each rank has its own copy of the callbacks, and calls them in the order of the list. In ``on_step_end`` under
    strategy ps, or with ``collective.loop`` other than all-reduce, the parameters are being exchanged. Look at them in
    the other hooks. :meth:`state_dict` is saved in checkpoints: numbers, strings, lists, dicts, tensors.
    """

    def on_train_begin(self, state: TrainingState) -> None:
        """Run before the first step, and before the first step after a restart."""

    def on_epoch_begin(self, state: TrainingState) -> None:
        """Run before the first step of an epoch, and before the first step after a restart."""

    def on_step_end(self, state: TrainingState) -> None:
        """Run after each optimizer step."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """Run after validation. All parameters are in place, and the module is in train mode."""

    def on_train_end(self, state: TrainingState) -> None:
        """Run with the final parameters, or the best ones if early stopping restores them."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned. Runs after a restart, before ``on_train_begin``."""


class Callbacks:
    """List of callbacks. It calls their hooks and names a callback that raises. An empty list is False."""

    def __init__(self, callbacks: Sequence[Callback], state: TrainingState, guard: ParameterGuard) -> None:
        self._callbacks, self._guard = callbacks, guard
        self.state = state

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def call(self, hook: str, **changes: Any) -> None:
        """Call ``hook`` of each callback with the state, after applying ``changes`` to the state.

        :raises CallbackError: a callback raises, or changes parameters where it must not.
        """
        for name, value in changes.items():
            setattr(self.state, name, value)
        for callback in self.find_overriding(hook):
            method: Callable[[TrainingState], None] = getattr(callback, hook)
            hook_name = f"callback {type(callback).__name__}.{hook}"
            # After a step the parameters may be in transit. After training the strategy has finished, and all are in place.
            position = f"{hook_name} on rank {self.state.rank} at step {self.state.step}"
            with self._guard.watch(position, is_complete=hook != "on_step_end", is_finished=hook == "on_train_end"):
                try:
                    method(self.state)
                except Exception as exc:
                    raise CallbackError(
                        f"{hook_name} raised {type(exc).__name__} on rank {self.state.rank} at step {self.state.step}: {exc}",
                        rank=self.state.rank,
                        step=self.state.step,
                        phase="callback",
                    ) from exc

    def find_overriding(self, hook: str) -> list[Callback]:
        """Return the callbacks that override ``hook``."""
        nothing = getattr(Callback, hook)
        return [each for each in self._callbacks if getattr(getattr(each, hook), "__func__", None) is not nothing]

    def saved(self) -> dict[str, Any]:
        return {"stop": self.state.stop_requested, "each": [callback.state_dict() for callback in self._callbacks]}

    def load(self, saved: dict[str, Any]) -> None:
        self.state.stop_requested = saved["stop"]
        for callback, state in zip(self._callbacks, saved["each"], strict=True):
            callback.load_state_dict(state)
