"""State of a module in a form that can be sent: parameters, persistent buffers, and extra state.

Extra state is what ``get_extra_state`` of the module's parts returns: numbers, text, bytes, tensors, and lists, tuples
and dicts of these (see :mod:`sparkdl_comm.gang.tensors`). It may differ between ranks. As with DistributedDataParallel,
the trained model has rank 0's.

:func:`check_no_aliases` finds tensors that share memory. They would come apart: a trained parameter is moved into the flat
vector, and the others are sent one by one.

:func:`deep_copy` copies modules that torch itself refuses to copy.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from sparkdl_comm.errors import InputError, ModelError
from sparkdl_comm.gang.tensors import describe, is_plain, pack_value, unpack_value

#: Name of extra state in torch's state_dict, after the part's name.
_EXTRA = "_extra_state"
#: Prefix of packed extra state among the names of tensors. It is unique, as no part of a module is named "".
_PREFIX = ".extra."
#: Prefix of buffers that are not in the state_dict.
_TRANSIENT = ".transient."


T = TypeVar("T")


class _CopyDetached(TorchFunctionMode):
    """Context in which ``copy.deepcopy`` copies the values of tensors that autograd computed. torch refuses to copy such
    tensors.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def deep_copy(value: T, memo: dict[int, Any] | None = None) -> T:
    """Return ``copy.deepcopy(value, memo)``. Tensors that autograd computed, such as the weight of ``weight_norm``, are
    copied without their graph.
    """
    with _CopyDetached():
        return copy.deepcopy(value, memo)


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers by name, without copying. A shared parameter appears once."""
    return {**dict(module.named_parameters()), **_buffers(module, persistent=True)}


def _buffers(module: nn.Module, *, persistent: bool) -> dict[str, torch.Tensor]:
    """Return buffers by name: those in the state_dict if ``persistent``, else all others."""
    return {
        name: buffer
        for prefix, part in module.named_modules()
        for name, buffer in part.named_buffers(prefix, recurse=False)
        if (name.rpartition(".")[2] not in part._non_persistent_buffers_set) == persistent
    }


def modules_of(function: Any) -> Iterator[nn.Module]:
    """Yield the modules that a call of ``function``, such as a loss, may run: itself, the owner of a method, and those
    that a functools.partial holds.
    """
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from modules_of(part)
    owner = getattr(function, "__self__", function)
    if isinstance(owner, nn.Module):
        yield owner


def extra_state(module: nn.Module) -> dict[str, Any]:
    """Return the result of ``get_extra_state`` of each part, by the part's name."""
    return {name: part.get_extra_state() for name, part in _parts(module).items()}


def load_extra_state(module: nn.Module, state: dict[str, Any]) -> None:
    """Load what :func:`extra_state` returned.

    :raises ModelError: the module lacks a part.
    """
    parts = _parts(module)
    for name, extra in state.items():
        if name not in parts:
            raise ModelError(
                f"there is extra state of a part {name}, which the model lacks here. The factory must build the same model"
                " everywhere."
            )
        parts[name].set_extra_state(extra)


def is_extra(name: str) -> bool:
    """Return whether ``name`` is the name of extra state in a state_dict."""
    return name.rpartition(".")[2] == _EXTRA


def check_shapes(module: nn.Module, owner: str = "") -> None:
    """Check that all parameters and buffers have a shape. Ranks and driver would each initialize one that has none.

    :param owner: text before the name in the message.
    :raises ModelError: a parameter or a buffer of a Lazy module has no shape yet.
    """
    tensors: dict[str, torch.Tensor] = {f"parameter {name}": each for name, each in module.named_parameters()}
    tensors |= {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ModelError(
                f"{owner}{name} has no shape yet (a Lazy module). Set the sizes, or call the module on an example first."
            )


def check(module: nn.Module) -> None:
    """Check that everything in the module's state_dict can be sent to the trained model. Called before training, and again
    after the first forward pass, which may add to the state.

    :raises ModelError: a part of the state cannot be sent. The message names the part.
    """
    for name, part in _parts(module).items():
        description = _describe(name, part)
        if type(part).set_extra_state is nn.Module.set_extra_state:
            raise ModelError(f"{description} has get_extra_state, but no set_extra_state to restore its state")
        _pack(name, part.get_extra_state(), description)
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    names = tensors_of(module)
    for name, tensor in names.items():
        if not is_plain(tensor):
            raise ModelError(
                f"{name} in the module's state_dict is a tensor that cannot be sent ({tensor.dtype}, {tensor.layout}):"
                " the trained model would lack it. If it does not change, make it a buffer with persistent=False."
            )
    for name, value in module.state_dict(keep_vars=True).items():
        if not (is_extra(name) or name in names or id(value) in known):
            raise ModelError(
                f"{name} in the module's state_dict is neither a parameter nor a buffer ({type(value).__name__}): the trained"
                " model would lack it. Make it a buffer, or return it from get_extra_state."
            )


def check_round_trip(module: nn.Module) -> None:
    """Let each part load its own extra state as it would arrive, so that an error shows before training, not after it.

    :raises ModelError: a part does not accept its state.
    """
    for name, part in _parts(module).items():
        description = _describe(name, part)
        arrived = unpack_value(_pack(name, part.get_extra_state(), description))[name]
        try:
            part.set_extra_state(arrived)
        except Exception as error:  # whatever a user's module raises
            raise ModelError(
                f"{description} does not take back what its get_extra_state returns. Instances of subclasses arrive as the"
                f" base class, such as a namedtuple as a tuple. set_extra_state raised {type(error).__name__}: {error}"
            ) from error


def pack_state(module: nn.Module, warn: Callable[[str], object]) -> dict[str, torch.Tensor]:
    """Return all of the state as tensors, for :func:`unpack_state`.

    Extra state that is no longer available is left out, as the end of training must not fail for it. ``warn`` is called
    with a message about it.
    """
    state = {}
    for name, part in _parts(module).items():
        try:
            state[name] = part.get_extra_state()
            _pack(name, state[name], _describe(name, part))
        except Exception as error:  # noqa: BLE001 - whatever a user's module raises, at the end of a long fit
            state.pop(name, None)
            warn(f"the trained model lacks the extra state of {_describe(name, part)}: {error!r}")
    extra = pack_value(state) if state else {}
    transient = _buffers(module, persistent=False)
    return {
        **tensors_of(module),
        **{_PREFIX + name: tensor for name, tensor in extra.items()},
        **{_TRANSIENT + name: buffer for name, buffer in transient.items() if is_plain(buffer)},
    }


def sendable(tensors: dict[str, torch.Tensor], warn: Callable[[str], object]) -> dict[str, torch.Tensor]:
    """Return those of ``tensors`` that can be sent. ``warn`` is called with a message about each of the others.

    :func:`check` refuses the others before training, and after the first forward pass. A tensor that training makes
    later must not cost the trained model.
    """
    sent = {}
    for name, tensor in tensors.items():
        try:
            describe({name: tensor})
            sent[name] = tensor
        except ModelError as error:
            warn(f"the trained model lacks a tensor: {error.message}")
    return sent


def unpack_state(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the state_dict's tensors by name, and the extra state (``get_extra_state``) by name of the submodule.

    :param tensors: the result of :func:`pack_state`. Its buffers that are not in the state_dict are left out.
    """
    extra = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
    return state_dict_of(tensors), unpack_value(extra) if extra else {}


def state_dict_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers, by name, from what :func:`pack_state` returned."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith((_PREFIX, _TRANSIENT))}


def transient_buffers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the buffers that are not in the state_dict, by name, from what :func:`pack_state` returned."""
    names = (name for name in tensors if name.startswith(_TRANSIENT))
    return {name.removeprefix(_TRANSIENT): tensors[name] for name in names}


def _parts(module: nn.Module) -> dict[str, nn.Module]:
    """Return the parts that have extra state."""
    return {
        name: part
        for name, part in module.named_modules()
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }


def _pack(name: str, extra: Any, description: str) -> dict[str, torch.Tensor]:
    try:
        return pack_value({name: extra})
    except InputError as error:
        raise ModelError(
            f"get_extra_state of {description} returns something that cannot be sent with the trained model: {error.message}"
        ) from error


def _describe(name: str, part: nn.Module) -> str:
    kind = type(part).__qualname__
    return f"the model's part {name} ({kind})" if name else f"the model ({kind})"


def check_no_aliases(module: nn.Module, trained: Mapping[str, torch.Tensor], owner: str = "") -> None:
    """Check that no two tensors of the module share an element, and that no trained parameter has an element twice.

    Tensors next to each other in one storage are allowed, and so is one tensor in several places.

    :param owner: text before the names in the message.
    :raises ModelError: two tensors share an element. The message names both.
    """
    trained_names = {id(tensor): name for name, tensor in trained.items()}
    untrained: dict[str, torch.Tensor] = {
        f"parameter {name}": parameter
        for name, parameter in module.named_parameters()
        if id(parameter) not in trained_names
    }
    untrained |= {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
    storages: dict[int, list[tuple[str, torch.Tensor, bool]]] = {}
    for tensors, is_trained in ((trained, True), (untrained, False)):
        for name, tensor in tensors.items():
            if not _has_comparable_memory(tensor):
                continue
            if is_trained and has_repeated_elements(tensor):
                raise ModelError(
                    f"elements of parameter {name} share memory with each other (made by expand?). Copy it with .contiguous()."
                )
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor, is_trained))
    for neighbors in storages.values():
        neighbors.sort(key=lambda neighbor: _bounds(neighbor[1])[0])
        for index, (name, tensor, is_trained) in enumerate(neighbors):
            stop = _bounds(tensor)[1]
            for other_name, other, is_other_trained in itertools.islice(neighbors, index + 1, None):
                if _bounds(other)[0] >= stop:
                    break
                if (other is tensor and not is_trained) or not _overlap(tensor, other):
                    continue
                _refuse_alias((name, is_trained), (other_name, is_other_trained), owner)


def _refuse_alias(first: tuple[str, bool], second: tuple[str, bool], owner: str) -> None:
    """Raise the error for two tensors that share memory, given as their names, and whether they are trained."""
    (one, is_trained), (other, is_other_trained) = sorted((first, second), key=lambda named: not named[1])
    if is_other_trained:
        raise ModelError(
            f"parameters {one} and {other} share memory (by .data?), but are trained separately. Tie the Parameter"
            " itself, as in `decoder.weight = encoder.weight`. If one is the other's transpose or slice, compute it"
            " in forward, as in F.linear(x, encoder.weight.t())."
        )
    if is_trained:
        raise ModelError(
            f"{other} shares memory with the trained parameter {one} (by .data, or detach()), and would not change"
            f" with it. Compute it from {one} in forward, or make it a copy (clone())."
        )
    raise ModelError(
        f"{owner}{one} and {other} share memory, and would come apart: each tensor is sent by itself. Use one tensor in both"
        " places, compute one of them from the other in forward, or make it a copy (clone())."
    )


def _has_comparable_memory(tensor: torch.Tensor) -> bool:
    """Return whether the tensor has memory that can be compared."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
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
