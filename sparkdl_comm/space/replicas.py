"""Model replicas, one on each rank: state that must be equal at the start of training and at the end of an epoch.

Frozen parameters, and buffers such as the running statistics of BatchNorm, may differ between ranks during an epoch.
Ranks compare digests in one all-gather, and exchange only tensors that differ.
"""

from __future__ import annotations

import torch

from sparkdl_comm.gang import values
from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import UntrainedState, digests


def broadcast_initial_state(model: FlatModel, gang: Gang, timeout: float) -> None:
    """Copy rank 0's parameters, buffers and extra state to all ranks, as DistributedDataParallel does.

    All ranks call it before ``model`` is bound. Their models must have the same trainable parameters.
    """
    state = UntrainedState(model)
    trained: dict[str, torch.Tensor] = {
        entry.name: parameter for entry, parameter in zip(model.entries, model.parameters, strict=True)
    }
    untrained, extra = state.tensors(), values.pack(state.extra())
    own_digests = [digests(tensors) for tensors in (trained, untrained, extra)]
    first, *others = gather_json(gang, own_digests, timeout)
    differing = [
        [name for name in theirs if any(other[kind].get(name) != theirs[name] for other in others)]
        for kind, theirs in enumerate(first)
    ]
    with torch.no_grad():
        for name in differing[0]:
            trained[name].copy_(_fetch_from_rank_0(trained, name, gang, timeout))
    state.load({name: _fetch_from_rank_0(untrained, name, gang, timeout) for name in differing[1]})
    if differing[2]:
        state.load_extra(values.unpack({name: _fetch_from_rank_0(extra, name, gang, timeout) for name in first[2]}))


def average(state: UntrainedState, rows: int, gang: Gang, timeout: float) -> None:
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
