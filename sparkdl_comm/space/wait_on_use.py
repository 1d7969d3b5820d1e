"""Wait-on-use: forward waits for a parameter that has not arrived just before using it, like FSDP's pre-forward hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sparkdl_comm.space.flat import FlatModel

#: Functions of a tensor that do not read its values.
_WITHOUT_VALUES = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")),
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("is_cuda", "is_leaf", "is_sparse", "is_nested", "grad", "grad_fn")
    ),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_floating_point", "__len__")),
}


class WaitOnUse(TorchFunctionMode):
    """Context that calls ``need(layer)`` before a trainable parameter of that layer is used. ``need`` returns when the
    values are there.

    Uses are detected in two ways, since neither detects all of them:

    - A torch function mode sees every function that gets a parameter as an argument, from any module: a tied weight, an
      attention's projection used without a call of its module, a penalty in the loss.
    - Pre-forward hooks see every call of a module that owns parameters. The module may pass them to code that torch
      does not see, such as an extension's functions.

    ``need`` may be called many times for a layer. While ``is_done()`` is true nothing is checked, which costs next to
    nothing.
    """

    def __init__(self, model: FlatModel, need: Callable[[int], None], is_done: Callable[[], bool]) -> None:
        super().__init__()
        self._layer_of = {
            id(parameter): layer for parameter, layer in zip(model.parameters, model.layer_of_each, strict=True)
        }
        self._need, self._is_done = need, is_done
        for module in model.module.modules():
            layers = [self._layer_of[id(p)] for p in module.parameters(recurse=False) if id(p) in self._layer_of]
            if layers:
                module.register_forward_pre_hook(self._make_hook(max(layers)))

    def _make_hook(self, layer: int) -> Callable[[torch.nn.Module, Any], None]:
        def hook(module: torch.nn.Module, inputs: Any) -> None:
            if not self._is_done():
                self._need(layer)

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_done() and func not in _WITHOUT_VALUES:
            self._check(args)
            self._check(kwargs.values())
        return func(*args, **kwargs)

    def _check(self, values: Iterable[Any]) -> None:
        for value in values:
            layer = self._layer_of.get(id(value))
            if layer is not None:
                self._need(layer)
            elif isinstance(value, (list, tuple)):
                self._check(value)


def can_wait_on_use(module: torch.nn.Module) -> bool:
    """Return whether uses of all parameters can be detected. They cannot inside code compiled by torch.compile or
    TorchScript.
    """
    return not any(
        isinstance(part, torch.jit.ScriptModule)
        or type(part).__module__.startswith("torch._dynamo")
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )
