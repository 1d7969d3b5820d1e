"""State of the model and its loss that no optimizer updates, but that training may change.

It consists of frozen parameters, buffers, and extra state (``get_extra_state``). For example, forward may move a frozen
copy of a layer, a momentum encoder, towards the trained layer. Tensors are named ``<kind> <owner>.<name>``, such as
``buffer model.norm.running_mean``. Kinds are ``parameter``, ``buffer``, and ``transient`` for a buffer that is not in
the state_dict.

The state may differ between ranks during an epoch. At the start of training and at the end of an epoch it must be equal.
Ranks compare digests in one all-gather, and exchange only tensors that differ. Sparse and quantized tensors are not sent:
they stay as the factory made them, and must be equal when training begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import pack_value, raw, unpack_value
from sparkdl_comm.space import module_state
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.module_state import has_repeated_elements


def broadcast_initial_state(model: FlatModel, gang: Gang, timeout: float) -> None:
    """Copy rank 0's parameters, buffers and extra state to all ranks, as DistributedDataParallel does.

    All ranks call it before ``model`` is bound. Their models must have the same trainable parameters.

    :raises ModelError: a sparse or quantized tensor differs between ranks.
    """
    state = UntrainedState(model)
    trained: dict[str, torch.Tensor] = {
        entry.name: parameter for entry, parameter in zip(model.entries, model.parameters, strict=True)
    }
    untrained, extra = state.tensors(), pack_value(state.extra())
    own_digests = [digests(tensors) for tensors in (trained, untrained, extra, state.unsent_tensors())]
    reports = gather_json(gang, own_digests, timeout)
    _check_unsent([unsent for *_, unsent in reports])
    first, *others = reports
    differing = [
        [name for name in theirs if any(other[kind].get(name) != theirs[name] for other in others)]
        for kind, theirs in enumerate(first[:3])
    ]
    with torch.no_grad():
        for name in differing[0]:
            trained[name].copy_(_fetch_from_rank_0(trained, name, gang, timeout))
    state.load({name: _fetch_from_rank_0(untrained, name, gang, timeout) for name in differing[1]})
    if differing[2]:
        state.load_extra(unpack_value({name: _fetch_from_rank_0(extra, name, gang, timeout) for name in first[2]}))


def _check_unsent(reports: Sequence[Mapping[str, str]]) -> None:
    for name in {name: None for report in reports for name in report}:
        if len({report.get(name) for report in reports}) > 1:
            raise ModelError(
                f"{name.partition(' ')[2]} differs between ranks when training begins, and is sparse or quantized. Such"
                " tensors stay as the factory made them. Make the same one on all ranks, for example with a fixed seed."
            )


def average_state(state: UntrainedState, rows: int, gang: Gang, timeout: float) -> None:
    """Make the untrained tensors equal on all ranks. All ranks call it.

    Floating-point tensors become the mean over the ranks, weighted by their rows and added in the order of the ranks.
    Other tensors, and tensors whose shapes differ, become those of the first rank that has rows and the tensor.

    :param rows: number of rows that this rank computed with its tensors.
    """
    tensors = state.tensors()
    reports = gather_json(gang, {"rows": rows, "digests": digests(tensors)}, timeout)
    names = {name: None for rank in reports for name in rank["digests"]}  # a set that keeps the order
    differing = [name for name in names if len({rank["digests"].get(name) for rank in reports}) > 1]
    if not differing:
        return
    gathered = gather_tensors(gang, [tensors[name] for name in differing if name in tensors], timeout)
    tensors_by_rank = [
        dict(zip([name for name in differing if name in rank["digests"]], theirs, strict=True))
        for rank, theirs in zip(reports, gathered, strict=True)
    ]
    averaged = {}
    for name in differing:
        shares = [
            (rank["rows"], theirs[name])
            for rank, theirs in zip(reports, tensors_by_rank, strict=True)
            if name in theirs
        ]
        averaged[name] = _mean([(share, tensor) for share, tensor in shares if share] or shares)
    state.load(averaged)


def _mean(shares: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return the mean of tensors, weighted by their rows; the first tensor if they cannot be averaged."""
    total, first = sum(share for share, _ in shares), shares[0][1]
    if not first.is_floating_point() or not total or any(tensor.shape != first.shape for _, tensor in shares):
        return first
    mean = torch.zeros_like(first, dtype=torch.float64)
    for share, tensor in shares:
        mean += tensor.double() * (share / total)
    return mean.to(first.dtype)


def _fetch_from_rank_0(tensors: dict[str, torch.Tensor], name: str, gang: Gang, timeout: float) -> torch.Tensor:
    """Return rank 0's tensor. Tensors are sent one at a time, so that no rank holds the model twice."""
    return gather_tensors(gang, [tensors[name]] if gang.rank == 0 else [], timeout)[0][0]


_PARAMETER, _BUFFER, _TRANSIENT = "parameter", "buffer", "transient"


class UntrainedState:
    """Untrained state of ``model``, and of the modules of ``loss``."""

    def __init__(self, model: FlatModel, loss: Any = None) -> None:
        losses = {f"loss{number or ''}": module for number, module in enumerate(module_state.modules_of(loss))}
        self._model = model
        self._owners = nn.ModuleDict({"model": model.module, **losses})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return frozen parameters and buffers by kind and name, without copying. A shared tensor appears once.

        Those of :meth:`unsent_tensors` are left out.
        """
        return {name: tensor for name, tensor in self._tensors().items() if module_state.is_plain(tensor)}

    def unsent_tensors(self) -> dict[str, torch.Tensor]:
        """Return the sparse and quantized tensors, by kind and name. They are not sent."""
        return {name: tensor for name, tensor in self._tensors().items() if not module_state.is_plain(tensor)}

    def _tensors(self) -> dict[str, torch.Tensor]:
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
        return {name: tensor for name, tensor in found.items() if not is_lazy(tensor)}

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
    for part in _plain_parts(tensor):
        found.update(raw(part))
    return found.hexdigest()


def _plain_parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the plain tensors that a tensor consists of: itself, or the parts of a sparse or quantized one."""
    if tensor.is_quantized:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return tensor.int_repr(), torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)
        axis = torch.tensor(tensor.q_per_channel_axis())
        return tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), axis
    if tensor.layout is torch.sparse_coo:
        coalesced = tensor.coalesce()
        return coalesced.indices(), coalesced.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return [tensor if tensor.layout is torch.strided else tensor.to_dense()]
