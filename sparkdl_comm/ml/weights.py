"""Weights of a module in a folder: tensors as safetensors, and extra state in a second file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.gang.tensors import pack_value, unpack_value
from sparkdl_comm.space import module_state

WEIGHTS = "model.safetensors"
EXTRA = "extra_state.safetensors"
#: Metadata key in :data:`WEIGHTS` for the names of the buffers, as JSON.
_BUFFERS = "buffers"


def write_weights(module: torch.nn.Module, folder: Path) -> None:
    """Write the weights into ``folder``, and the module's extra state if it has any.

    :raises ModelError: safetensors cannot hold them.
    """
    extra = module_state.extra_state(module)
    try:
        buffers = {_BUFFERS: json.dumps([name for name, _ in module.named_buffers()])}
        safetensors.torch.save_model(_TensorView(module), str(folder / WEIGHTS), buffers)  # type: ignore[arg-type]
        if extra:
            tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in pack_value(extra).items()}
            safetensors.torch.save_file(tensors, folder / EXTRA)
    except (RuntimeError, ValueError, AttributeError) as error:
        raise ModelError(f"the weights cannot be stored as safetensors: {error}") from error


def read_weights(factory: Any, folder: Path, path: str) -> torch.nn.Module:
    """Return a module with the weights in ``folder``.

    :param factory: function that makes a module, or a module, which is copied.
    :raises PersistenceError: it does not make a module, or the weights cannot be read.
    :raises ModelError: it makes another module. The message names the tensors that differ.
    """
    try:
        module = module_state.deep_copy(factory) if isinstance(factory, torch.nn.Module) else factory()
    except Exception as error:
        raise PersistenceError(
            f"{path}: {factory} does not make the module: {error!r}. Give a working one: load(path, model=...)"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise PersistenceError(f"{path}: {factory} made a {type(module).__name__}, not a torch.nn.Module")
    try:
        _make_buffers(module, folder / WEIGHTS)
        safetensors.torch.load_model(_TensorView(module), str(folder / WEIGHTS))  # type: ignore[arg-type]
    except RuntimeError as error:  # names the tensors
        raise ModelError(f"{path}: the weights are not those of {type(module).__name__}: {error}") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise PersistenceError(f"{path}: cannot read {WEIGHTS}: {error}") from error
    if (folder / EXTRA).exists():
        try:
            module_state.load_extra_state(module, unpack_value(read_tensors(folder / EXTRA, path)))
        except Exception as error:
            raise ModelError(
                f"{path}: {type(module).__name__} does not take the extra state saved: {error!r}"
            ) from error
    return module


def _make_buffers(module: torch.nn.Module, file: Path) -> None:
    """Add the buffers of ``file`` that ``module`` lacks, or has in another shape.

    Training may add or resize buffers.
    """
    buffers = dict(module.named_buffers())
    with safetensors.safe_open(str(file), "pt") as opened:
        stored = json.loads((opened.metadata() or {}).get(_BUFFERS, "[]"))
        for name in set(stored) & set(opened.keys()):
            tensor = opened.get_tensor(name)
            path, _, local_name = name.rpartition(".")
            if name in buffers and buffers[name].shape == tensor.shape:
                continue
            try:
                module.get_submodule(path).register_buffer(local_name, tensor)
            except (AttributeError, KeyError):
                continue  # another model; loading it reports the difference


class _TensorView:
    """View of a module for safetensors: its tensors without extra state."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name.

        A view of another tensor's memory is copied. Tied tensors stay one tensor.
        """
        tensors: dict[str, torch.Tensor] = {}
        copies: dict[Any, torch.Tensor] = {}
        for name, tensor in self._module.state_dict().items():
            if module_state.is_extra(name):
                continue
            if not tensor.is_contiguous() or tensor.nbytes != tensor.untyped_storage().nbytes():
                place = (tensor.data_ptr(), tensor.shape, tensor.stride())
                tensor = copies.setdefault(place, tensor.contiguous().clone())
            tensors[name] = tensor
        return tensors

    def load_state_dict(self, tensors: dict[str, torch.Tensor], strict: bool) -> tuple[list[str], list[str]]:
        missing, unexpected = self._module.load_state_dict(tensors, strict)
        return [name for name in missing if not module_state.is_extra(name)], unexpected


def read_tensors(file: Path, path: str) -> dict[str, torch.Tensor]:
    """Return the tensors in ``file``.

    :raises PersistenceError: the file cannot be read. The message names ``path``.
    """
    try:
        return safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise PersistenceError(f"{path}: cannot read {file.name}: {error}") from error
