"""State of the model and its loss that no optimizer updates, but that training may change.

It consists of frozen parameters, buffers, and extra state (``get_extra_state``). For example, forward may move a frozen
copy of a layer, a momentum encoder, towards the trained layer. Tensors are named ``<kind> <owner>.<name>``, such as
``buffer model.norm.running_mean``. Kinds are ``parameter``, ``buffer``, and ``transient`` for a buffer that is not in
the state_dict.
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
from sparkdl_comm.space.aliases import has_repeated_elements
from sparkdl_comm.space.flat import FlatModel

_PARAMETER, _BUFFER, _TRANSIENT = "parameter", "buffer", "transient"


class UntrainedState:
    """Untrained state of ``model``, and of ``loss`` if the loss is a module."""

    def __init__(self, model: FlatModel, loss: Any = None) -> None:
        parts = {"model": model.module}
        if isinstance(loss, nn.Module):
            parts["loss"] = loss
        self._model = model
        self._owners = nn.ModuleDict(parts)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return frozen parameters and buffers by kind and name, without copying. A shared tensor appears once.

        Sparse and quantized tensors are left out. They stay as the factory made them.
        """
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
        """Load ``tensors``, by the names of :meth:`tensors`, into the model and the loss.

        A tensor of another shape or type is replaced, and so is one that torch cannot write (made by expand). A missing
        tensor is registered, such as a buffer that the first forward pass would register.

        :raises ModelError: a name belongs to no module.
        """
        current = self.tensors()
        with torch.no_grad():
            for name, values in tensors.items():
                tensor = current.get(name)
                if tensor is None:
                    self._register(name, values.to(self._model.parameters[0].device, copy=True))
                elif (
                    tensor.shape == values.shape and tensor.dtype == values.dtype and not has_repeated_elements(tensor)
                ):
                    tensor.copy_(values)
                else:
                    tensor.data = values.to(tensor.device, copy=True)

    def extra(self) -> dict[str, Any]:
        """Return the extra state, by the name of the part."""
        return module_state.extra_state(self._owners)

    def load_extra(self, extra: dict[str, Any]) -> None:
        """Load what :meth:`extra` returned."""
        module_state.load_extra_state(self._owners, extra)

    def _register(self, name: str, values: torch.Tensor) -> None:
        kind, _, path = name.partition(" ")
        prefix, _, leaf = path.rpartition(".")
        try:
            owner = self._owners.get_submodule(prefix)
        except AttributeError:
            raise ModelError(
                f"{kind} {path} is part of the training state, but the model has no {prefix} when training begins. Create it"
                " in __init__."
            ) from None
        if kind == _PARAMETER:
            owner.register_parameter(leaf, nn.Parameter(values, requires_grad=False))
        else:
            owner.register_buffer(leaf, values, persistent=kind == _BUFFER)


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return a digest of the shape, type and values of each tensor, by name."""
    return {name: _digest(tensor) for name, tensor in tensors.items()}


def _digest(tensor: torch.Tensor) -> str:
    found = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    found.update(raw(tensor))
    return found.hexdigest()
