"""State that no optimizer updates, but that training may change: of the model and of its loss, frozen parameters, buffers, and
what ``get_extra_state`` of their parts returns.

A momentum encoder is an example: forward moves a frozen copy of a layer towards the trained one. Tensors are named
``<kind> <owner>.<name>``, such as ``buffer model.norm.running_mean``. Kinds: ``parameter``, ``buffer``, and ``transient`` for
a buffer that is not in the state_dict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.tensors import raw
from sparkdl_comm.space import module_state
from sparkdl_comm.space.aliases import repeats
from sparkdl_comm.space.flat import FlatModel

_PARAMETER, _BUFFER, _TRANSIENT = "parameter", "buffer", "transient"


class UntrainedState:
    """The untrained state of ``model`` and of ``loss``, if the loss is a module."""

    def __init__(self, model: FlatModel, loss: Any = None) -> None:
        parts = {"model": model.module}
        if isinstance(loss, nn.Module):
            parts["loss"] = loss
        self._model = model
        self._owners = nn.ModuleDict(parts)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Frozen parameters and buffers themselves, by kind and name; those that are shared once. Without sparse and quantized
        ones, which stay as the factory makes them."""
        trained = {id(parameter) for parameter in self._model.parameters}
        found: dict[str, torch.Tensor] = {
            f"{_PARAMETER} {name}": parameter
            for name, parameter in self._owners.named_parameters()
            if id(parameter) not in trained
        }
        for name, buffer in self._owners.named_buffers():
            prefix, _, leaf = name.rpartition(".")
            transient = leaf in self._owners.get_submodule(prefix)._non_persistent_buffers_set
            found[f"{_TRANSIENT if transient else _BUFFER} {name}"] = buffer
        return {name: tensor for name, tensor in found.items() if not is_lazy(tensor) and module_state.is_plain(tensor)}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give the model and the loss the values of ``tensors``, by the names of :meth:`tensors`.

        A tensor of another shape or type is replaced, and one that torch does not write (made by expand). One that is not
        there yet is registered, such as a buffer that the first forward pass would register.

        :raises ModelError: a name has no module to belong to.
        """
        here = self.tensors()
        with torch.no_grad():
            for name, values in tensors.items():
                tensor = here.get(name)
                if tensor is None:
                    self._register(name, values.to(self._model.parameters[0].device, copy=True))
                elif tensor.shape == values.shape and tensor.dtype == values.dtype and not repeats(tensor):
                    tensor.copy_(values)
                else:
                    tensor.data = values.to(tensor.device, copy=True)

    def extra(self) -> dict[str, Any]:
        """Extra state, by the name of the part."""
        return module_state.extra_state(self._owners)

    def load_extra(self, extra: dict[str, Any]) -> None:
        """Give the parts what :meth:`extra` returned."""
        module_state.load_extra_state(self._owners, extra)

    def _register(self, name: str, values: torch.Tensor) -> None:
        kind, _, path = name.partition(" ")
        prefix, _, leaf = path.rpartition(".")
        try:
            owner = self._owners.get_submodule(prefix)
        except AttributeError:
            raise ModelError(
                f"{kind} {path} is part of the training's state, and the model has no {prefix} when training begins: make it"
                " in __init__"
            ) from None
        if kind == _PARAMETER:
            owner.register_parameter(leaf, nn.Parameter(values, requires_grad=False))
        else:
            owner.register_buffer(leaf, values, persistent=kind == _BUFFER)


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """A digest of the shape, type and values of each tensor, by name."""
    return {name: _digest(tensor) for name, tensor in tensors.items()}


def _digest(tensor: torch.Tensor) -> str:
    found = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    found.update(raw(tensor))
    return found.hexdigest()
