"""Wait-on-use: forward waits for a parameter that is still on its way here just before it uses it, as FSDP's pre-forward
hooks do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sparkdl_comm.space.flat import FlatModel

#: What can be asked of a parameter without its values.
_WITHOUT_VALUES = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")),
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("is_cuda", "is_leaf", "is_sparse", "is_nested", "grad", "grad_fn")
    ),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_floating_point", "__len__")),
}


class WaitOnUse(TorchFunctionMode):
    """A context: inside it, ``need(layer)`` is called before a trainable parameter of that layer is used, and returns when the
    layer's values are there.

    A use is noticed in two ways, since neither of them sees everything:

    - A mode of torch sees every function that gets a parameter as an argument, whatever module calls it: a tied weight, an
      attention's projection that is used without its module being called, a penalty in the loss.
    - Pre-forward hooks see every call of a module that owns parameters, which may hand them to code that torch does not see,
      such as an extension's functions.

    ``need`` may be called many times for a layer. While ``done()`` is true nothing is looked at, which costs next to nothing.
    """

    def __init__(self, model: FlatModel, need: Callable[[int], None], done: Callable[[], bool]) -> None:
        super().__init__()
        self._layer_of = {
            id(parameter): layer for parameter, layer in zip(model.parameters, model.layer_of_each, strict=True)
        }
        self._need, self._done = need, done
        for module in model.module.modules():
            layers = [self._layer_of[id(p)] for p in module.parameters(recurse=False) if id(p) in self._layer_of]
            if layers:
                module.register_forward_pre_hook(self._before(max(layers)))

    def _before(self, layer: int) -> Callable[[torch.nn.Module, Any], None]:
        def hook(module: torch.nn.Module, inputs: Any) -> None:
            if not self._done():
                self._need(layer)

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._done() and func not in _WITHOUT_VALUES:
            self._look(args)
            self._look(kwargs.values())
        return func(*args, **kwargs)

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            layer = self._layer_of.get(id(value))
            if layer is not None:
                self._need(layer)
            elif isinstance(value, (list, tuple)):
                self._look(value)


def can_wait_on_use(module: torch.nn.Module) -> bool:
    """Whether uses of all parameters can be noticed: not inside of what torch.compile or TorchScript has compiled."""
    return not any(
        isinstance(part, torch.jit.ScriptModule)
        or type(part).__module__.startswith("torch._dynamo")
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )
