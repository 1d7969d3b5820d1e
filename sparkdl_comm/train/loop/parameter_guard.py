"""Guard against callbacks that change trained parameters. Changes are kept if every rank updates all parameters, else
refused.

With other strategies a rank has exact values only for its own part of the parameters, and other ranks read its memory
or write to it. A change would be lost, or reach only some ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparkdl_comm.errors import CallbackError
from sparkdl_comm.space.flat import FlatModel


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
