"""Callbacks: user code that runs on the ranks during training.

:class:`ParameterGuard` keeps their changes of trained parameters if every rank updates all parameters, and refuses them
else. With other strategies a rank updates only its own part of the parameters, and other ranks read its memory or write
to it. A change would be lost, or reach only some ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparkdl_comm.errors import CallbackError
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.train.diagnosis import OutputShape


class ParameterGuard:
    """Guard of the parameters of ``model`` while callbacks run.

    :param strict: True: refuse changes. False: keep them.
    """

    def __init__(self, model: FlatModel, *, strict: bool) -> None:
        self._model, self._strict = model, strict

    @contextlib.contextmanager
    def watch(self, hook_name: str, *, is_complete: bool, is_finished: bool) -> Iterator[None]:
        """Watch a callback's hook, as a context.

        :param hook_name: name of the hook, for messages.
        :param is_complete: all parameters are in place. The hook may change them temporarily, for example to look at
            averaged ones. If False, any write counts as a change.
        :param is_finished: there are no more steps, so all changes are kept.
        NumPy arrays that share the memory of parameters are read-only if changes are refused.

        :raises CallbackError: the hook has changed a parameter that it must not change; or a parameter's shape.
        """
        if is_finished or not self._strict:
            yield
            self._take_over(hook_name)
            return
        writes = _WriteDetector(self._model, keep=is_complete)
        with writes, _ReadOnlyArrays(self._model):
            yield
        replaced = self._model.replaced()
        changed = replaced or (
            writes.first_written and not (is_complete and torch.equal(self._model.values, writes.original))
        )
        if changed:
            raise CallbackError(
                f"{hook_name} changes trained parameters, such as {(replaced or [writes.first_written])[0]}. With this"
                " strategy each rank updates only a part of them, and the change would be lost. Set strategy='ring' or"
                " 'gloo' and spark.sparkdl.comm.collective.loop=all-reduce, or bound weights in the model"
                " (torch.nn.utils.parametrize)",
                phase="callback",
            )

    def _take_over(self, hook_name: str) -> None:
        for name in self._model.replaced():
            if not self._model.take_back(name):
                raise CallbackError(
                    f"{hook_name} changes the shape or type of the trained parameter {name}", phase="callback"
                )


class _WriteDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that finds the first parameter written by any operation of torch, including writes through ``.data``."""

    def __init__(self, model: FlatModel, *, keep: bool) -> None:
        """Create a detector of writes to the parameters of ``model``.

        :param keep: copy all parameters to ``original`` just before the first write to one of them.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._model, self._keep = model, keep
        self.first_written = ""
        self.original = torch.empty(0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.first_written:
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._inspect(args[place] if place < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _inspect(self, written: Any) -> None:
        for tensor in written if isinstance(written, (list, tuple)) else [written]:
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
                continue
            byte = _offset(self._model, tensor.data_ptr())
            if byte is not None and not self.first_written:
                self.first_written = self._model.entries[self._model.cut(byte // 4, 1)[0].number].name
                if self._keep:
                    self.original = self._model.values.clone()


class _ReadOnlyArrays(TorchFunctionMode):
    """Context in which torch returns read-only NumPy arrays of the parameters' memory. No operation of torch shows what
    is written to an array.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__()
        self._model = model

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, np.ndarray) and _offset(self._model, result.ctypes.data) is not None:
            result.flags.writeable = False
        return result


def _offset(model: FlatModel, address: int) -> int | None:
    """Return the bytes from the begin of the parameters' memory to ``address``, or None if it is elsewhere."""
    byte = address - model.values.data_ptr()
    return byte if 0 <= byte < model.values.nbytes else None


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

    After a restart or with ``resume``, hooks of a beginning run again, and see the restored module. The checkpoint wins
    over what they change the second time: parameters, buffers, extra state, ``requires_grad`` and random generators.
    So training continues as if it had not stopped. ``on_train_begin`` can tell by ``state.step``, which is 0 at the first
    time.
    """

    def on_train_begin(self, state: TrainingState) -> None:
        """Run before the first step, and before the first step after a restart."""

    def on_epoch_begin(self, state: TrainingState) -> None:
        """Run before the first step of an epoch, and before the first step after a restart within an epoch."""

    def on_step_end(self, state: TrainingState) -> None:
        """Run after each optimizer step."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """Run after validation. All parameters are in place, and the module is in train mode."""

    def on_train_end(self, state: TrainingState) -> None:
        """Run with the final parameters, or the best ones if early stopping restores them."""

    def state_dict(self) -> dict[str, Any]:
        """Return what checkpoints save of this callback. The default is nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned. Runs after a restart, before ``on_train_begin``."""


class Callbacks:
    """List of callbacks. It calls their hooks and names a callback that raises. An empty list is False."""

    def __init__(self, callbacks: Sequence[Callback], state: TrainingState, guard: ParameterGuard) -> None:
        self._callbacks, self._guard = callbacks, guard
        self.state = state
        #: Names of the hooks that have run since :meth:`clear_called`, in the order of their first run.
        self._called: dict[str, None] = {}

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
            self._called[f"{type(callback).__name__}.{hook}"] = None
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

    def clear_called(self) -> list[str]:
        """Return the names of the hooks that have run since the last call of this method, and forget them."""
        called, self._called = list(self._called), {}
        return called

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


_STEP_PHASES = ("pull", "forward", "backward", "push", "update")


@dataclass
class Progress:
    """Progress of one rank.

    :param step: optimizer steps done, through all epochs.
    :param epoch: the current epoch, from 0.
    :param batch: steps done in the current epoch.
    :param skipped: how many of these steps the optimizer skipped.
    :param epoch_loss: sum of this rank's parts of the losses of the steps that were not skipped.
    :param history: a row per finished epoch, with this rank's part of the loss.
    :param stopped: training has ended early; there are no more steps.
    :param output_shape: shape of the model's output for one row.
    :param phase: current phase of the training, for messages about a failure.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    skipped: int = 0
    epoch_loss: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False
    output_shape: OutputShape | None = None
    phase: str = "set-up"

    @property
    def step_number(self) -> int | None:
        """Number of the current step, or of the last one between steps, from 1. None before the first step."""
        return self.step + 1 if self.phase in _STEP_PHASES else self.step or None
