"""Detection of tensors that share memory with a trained parameter.

Moving the parameter into the flat vector would separate these tensors from it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl_comm.errors import ModelError


def check_no_aliases(module: nn.Module, trained: Mapping[str, torch.Tensor]) -> None:
    """Check that no trained parameter shares an element with another tensor of the module, or with itself.

    Parameters next to each other in one storage are allowed, and so is one Parameter in several places.

    :raises ModelError: a trained parameter shares an element; names both tensors.
    """
    trained_names = {id(tensor): name for name, tensor in trained.items()}
    others: dict[str, torch.Tensor] = {
        f"parameter {name}": parameter
        for name, parameter in module.named_parameters()
        if id(parameter) not in trained_names
    }
    others |= {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
    owners: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in trained.items():
        if not _is_plain(tensor):
            continue
        if has_repeated_elements(tensor):
            raise ModelError(
                f"elements of parameter {name} share memory with each other (made by expand?). Copy it with .contiguous()."
            )
        place = owners.setdefault(tensor.untyped_storage().data_ptr(), [])
        for other, earlier in place:
            if _overlap(earlier, tensor):
                raise ModelError(
                    f"parameters {other} and {name} share memory (by .data?), but are trained separately. Tie the Parameter"
                    " itself, as in `decoder.weight = encoder.weight`. If one is the other's transpose or slice, compute it"
                    " in forward, as in F.linear(x, encoder.weight.t())."
                )
        place.append((name, tensor))
    for name, tensor in others.items():
        if not _is_plain(tensor):
            continue
        for other, earlier in owners.get(tensor.untyped_storage().data_ptr(), []):
            if _overlap(earlier, tensor):
                raise ModelError(
                    f"{name} shares memory with the trained parameter {other} (by .data, or detach()), and would not change"
                    f" with it. Compute it from {other} in forward, or make it a copy (clone())."
                )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor has memory that can be compared."""
    return (
        not is_lazy(tensor)
        and type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )


def _bounds(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the offset of the tensor's first byte in the storage, and the end of its last byte."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first, size = int(tensor.storage_offset()), tensor.element_size()
    return first * size, (first + last + 1) * size


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one storage share a byte."""
    (start, stop), (begin, end) = _bounds(one), _bounds(other)
    if stop <= begin or end <= start:
        return False
    if one.element_size() != other.element_size():
        return True
    return bool(torch.isin(_elements(one), _elements(other)).any())


def has_repeated_elements(tensor: torch.Tensor) -> bool:
    """Return whether several elements of the tensor are the same element of its storage."""
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return True
    return not tensor.is_contiguous() and len(torch.unique(_elements(tensor))) < tensor.numel()


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return the positions of the tensor's elements in the storage, flat."""
    stop = _bounds(tensor)[1] // tensor.element_size()
    return torch.arange(stop).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1)
