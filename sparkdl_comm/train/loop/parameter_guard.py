"""Callbacks that change trained parameters: taken over where every rank updates all of them, else refused at once.

A rank of another strategy has the exact values of its own part only, and others read its memory or send into it. So a change
there would be lost, or be in the model of some ranks and not of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparkdl_comm.errors import CallbackError
from sparkdl_comm.space.flat import FlatModel


class ParameterGuard:
    """Guard over the parameters of ``model`` while callbacks run. ``strict``: changes are refused, else taken over."""

    def __init__(self, model: FlatModel, *, strict: bool) -> None:
        self._model, self._strict = model, strict

    @contextlib.contextmanager
    def around(self, called: str, *, complete: bool, over: bool) -> Iterator[None]:
        """Watch, as a context, the hook ``called`` of a callback.

        ``complete``: all parameters are in place. The hook may change them if it changes them back, as to look at averaged
        ones. Where parameters are on their way, any write is a change. ``over``: there are no more steps, so all changes
        are taken over.

        :raises CallbackError: the hook has changed a parameter that it may not change; or a parameter's shape.
        """
        if over or not self._strict:
            yield
            self._take_over(called)
            return
        writes = _Writes(self._model, keep=complete)
        with writes:
            yield
        replaced = self._model.replaced()
        changed = replaced or (writes.seen and not (complete and torch.equal(self._model.values, writes.before)))
        if changed:
            raise CallbackError(
                f"{called} changes trained parameters, such as {(replaced or [writes.seen])[0]}: with this strategy each rank"
                " updates a part of them only, and the change would be lost. Set strategy='ring' or 'gloo' and"
                " spark.sparkdl.comm.collective.loop=all-reduce, or bound weights in the model"
                " (torch.nn.utils.parametrize)",
                phase="callback",
            )

    def _take_over(self, called: str) -> None:
        for name in self._model.replaced():
            if not self._model.take_back(name):
                raise CallbackError(
                    f"{called} changes the shape or type of the trained parameter {name}", phase="callback"
                )


class _Writes(TorchDispatchMode):
    """A context that sees which of the parameters is first written, by whatever operation of torch, ``.data`` included."""

    def __init__(self, model: FlatModel, *, keep: bool) -> None:
        """``keep``: copy all values before the first write."""
        super().__init__()
        self._model, self._keep = model, keep
        self.seen = ""
        self.before = torch.empty(0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.seen:
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._look(args[place] if place < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _look(self, written: Any) -> None:
        for tensor in written if isinstance(written, (list, tuple)) else [written]:
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
                continue
            byte = tensor.data_ptr() - self._model.values.data_ptr()
            if 0 <= byte < self._model.values.nbytes and not self.seen:
                self.seen = self._model.entries[self._model.cut(byte // 4, 1)[0].number].name
                if self._keep:
                    self.before = self._model.values.clone()
