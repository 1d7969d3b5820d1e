"""State of the model and its loss that no optimizer updates, but that training may change.

It consists of frozen parameters, buffers, and extra state (``get_extra_state``). For example, forward may move a frozen
copy of a layer, a momentum encoder, towards the trained layer. Tensors are named ``<kind> <owner>.<name>``, such as
``buffer model.norm.running_mean``. Kinds are ``parameter``, ``buffer``, and ``transient`` for a buffer that is not in
the state_dict.

The state may differ between ranks during an epoch. At the start of training and at the end of an epoch it must be equal.
A rank that had no rows in a step takes over the state of those that had, before its next rows. Ranks compare digests in
one all-gather, and exchange only tensors that differ. Sparse and quantized tensors are not sent: they stay as the
factory made them, and must be equal when training begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import is_plain, pack_value, raw, unpack_value
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
        for group in _group(differing[0], trained, gang, timeout):
            for name, values in zip(group, _fetch(group, trained, 0, gang, timeout), strict=True):
                trained[name].copy_(values)
    for group in _group(differing[1], untrained, gang, timeout):
        state.load(dict(zip(group, _fetch(group, untrained, 0, gang, timeout), strict=True)))
    if differing[2]:
        state.load_extra(unpack_value(dict(zip(first[2], _fetch([*first[2]], extra, 0, gang, timeout), strict=True))))


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
    for group in _group(differing, tensors, gang, timeout):
        means = {}
        for name in group:
            owners = [rank for rank, report in enumerate(reports) if name in report["digests"]]
            counts = {rank: reports[rank]["rows"] for rank in owners}
            means[name] = _Mean({rank: count for rank, count in counts.items() if count} or counts)
        for rank in range(gang.world):
            asked = [name for name in group if rank in means[name].rows]
            if asked:
                for name, tensor in zip(asked, _fetch(asked, tensors, rank, gang, timeout), strict=True):
                    means[name].add(rank, tensor)
        state.load({name: mean.result() for name, mean in means.items()})


def take_over_state(state: UntrainedState, sources: Sequence[int], gang: Gang, timeout: float) -> None:
    """Give all ranks the untrained tensors of ``sources``, if these ranks have equal ones. All ranks call it.

    So a rank without rows in a step gets what forward made of the trained parameters, such as the next momentum encoder.
    What depends on rows differs between several sources, and stays.
    """
    tensors = state.tensors()
    reports = gather_json(gang, digests(tensors), timeout)
    first, *others = (reports[rank] for rank in sources)
    agreed = {name: digest for name, digest in first.items() if all(other.get(name) == digest for other in others)}
    differing = [name for name, digest in agreed.items() if any(report.get(name) != digest for report in reports)]
    for group in _group(differing, tensors, gang, timeout):
        state.load(dict(zip(group, _fetch(group, tensors, sources[0], gang, timeout), strict=True)))


class _Mean:
    """Mean of the ranks' tensors, which come in the order of the ranks. ``rows``: weights of the ranks that have one.

    It is the first tensor if the tensors cannot be averaged.
    """

    def __init__(self, rows: dict[int, int]) -> None:
        self.rows, self._total = rows, sum(rows.values())
        self._first = self._sum = torch.empty(0)
        self._can_average = True

    def add(self, rank: int, tensor: torch.Tensor) -> None:
        if rank == next(iter(self.rows)):
            self._first, self._can_average = tensor, tensor.is_floating_point() and self._total > 0
            self._sum = torch.zeros_like(tensor, dtype=torch.float64) if self._can_average else self._sum
        self._can_average = self._can_average and tensor.shape == self._first.shape
        if self._can_average:
            self._sum += tensor.double() * (self.rows[rank] / self._total)

    def result(self) -> torch.Tensor:
        return self._sum.to(self._first.dtype) if self._can_average else self._first


#: Most bytes of tensors that a rank sends at once. A larger tensor is sent alone.
_GROUP_BYTES = 1 << 20


def _group(
    names: Sequence[str], tensors: Mapping[str, torch.Tensor], gang: Gang, timeout: float
) -> Iterator[list[str]]:
    """Yield ``names`` in groups whose tensors are sent at once, so that no rank holds the model several times. All ranks
    call it.
    """
    if not names:
        return
    sizes = gather_json(gang, [tensors[name].nbytes if name in tensors else 0 for name in names], timeout)
    group: list[str] = []
    size = 0
    for name, largest in zip(names, map(max, zip(*sizes, strict=True)), strict=True):
        if group and size + largest > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group, size = [*group, name], size + largest
    yield group


def _fetch(
    names: Sequence[str], tensors: Mapping[str, torch.Tensor], rank: int, gang: Gang, timeout: float
) -> list[torch.Tensor]:
    """Return these tensors of ``rank``. All ranks call it."""
    return gather_tensors(gang, [tensors[name] for name in names] if gang.rank == rank else [], timeout)[rank]


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
        return {name: tensor for name, tensor in self._tensors().items() if is_plain(tensor)}

    def unsent_tensors(self) -> dict[str, torch.Tensor]:
        """Return the sparse and quantized tensors, by kind and name. They are not sent."""
        return {name: tensor for name, tensor in self._tensors().items() if not is_plain(tensor)}

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
