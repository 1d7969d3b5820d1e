"""Parallel tensor operator (PTO), section 4.2 of the CommLib paper.

It distributes work that all ranks would otherwise repeat on the same tensors, and all-gathers the small results. It
pays off if the all-gather takes less time than a rank saves.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import raw


class Ranks(Protocol):
    """Group of ranks that share work; a :class:`sparkdl_comm.Communicator` is one."""

    rank: int
    world: int

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new tensor ``[world, *tensor.shape]`` with the ranks' tensors, which have equal shapes and dtypes."""


class SingleRank:
    """Group of one rank."""

    rank, world = 0, 1

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unsqueeze(0)


class GangRanks:
    """Ranks of a gang, which gather through rank 0 in one round trip: for kilobytes. ``timeout``: seconds for a gather."""

    def __init__(self, gang: Gang, timeout: float) -> None:
        self.rank, self.world = gang.rank, gang.world
        self._gang, self._timeout = gang, timeout

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks like :meth:`Ranks.all_gather`, up to 4 MiB per rank.

        It raises the errors of :meth:`sparkdl_comm.gang.gang.Gang.all_gather`.
        """
        result = torch.empty((self.world, *tensor.shape), dtype=tensor.dtype)
        raw(result)[:] = b"".join(self._gang.all_gather(bytes(raw(tensor)), self._timeout))
        return result.to(tensor.device)


def parallel(
    op: Callable[[torch.Tensor], torch.Tensor],
    tensors: Sequence[torch.Tensor],
    ranks: Ranks,
    *,
    shape: Sequence[int] = (),
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Apply ``op`` to each tensor. Return ``[len(tensors), *shape]`` of ``dtype``, in order, on the first tensor's
    device.

    All ranks call it, with equal tensors in the same order. Each calls ``op`` for its part of them, with about the same
    number of elements per rank, then there is one all-gather. All ranks have the same bits, even if their processors
    round differently.

    :param ranks: a :class:`sparkdl_comm.Communicator`, in a function that CommDistributor runs.
    :param shape: shape of each result; ``()`` for a number.
    :raises InputError: ``op`` returned a tensor of another shape. Raised on the rank that called it.

    Errors of ``op`` and of the all-gather are passed on. If ``op`` raises on one rank, the others wait until they learn
    that it failed.
    """
    if not tensors:
        return torch.empty((0, *shape), dtype=dtype)
    owners, most_items, places = _layout(tuple(tensor.numel() for tensor in tensors), ranks.world)
    own_results = torch.zeros((most_items, *shape), dtype=dtype, device=tensors[0].device)
    results = [op(tensor) for tensor, owner in zip(tensors, owners, strict=True) if owner == ranks.rank]
    for result in results:
        if result.shape != own_results.shape[1:]:
            raise InputError(
                f"parallel: op returned a tensor of shape {list(result.shape)}, but the call says shape={list(shape)}"
            )
    if results:
        own_results[: len(results)] = torch.stack(results)
    return ranks.all_gather(own_results).flatten(0, 1)[places.to(own_results.device)]


def deal(loads: Sequence[int], world: int) -> list[int]:
    """Return the rank of each item, so that the largest sum of a rank's loads is small. All ranks get the same result.

    It uses longest processing time first: the largest items first, each to the rank with the least load. The largest
    sum is at most 4/3 - 1/(3 world) times the optimum.
    """
    owners = [0] * len(loads)
    heap = [(0, rank) for rank in range(world)]
    for index in sorted(range(len(loads)), key=lambda index: -loads[index]):
        load, owner = heap[0]
        owners[index] = owner
        heapq.heapreplace(heap, (load + loads[index], owner))
    return owners


@functools.lru_cache(maxsize=16)  # every step has the same tensors
def _layout(loads: tuple[int, ...], world: int) -> tuple[list[int], int, torch.Tensor]:
    """Return the owner of each item, the most items of any rank, and each item's row in the gathered results."""
    owners = deal(loads, world)
    most_items = max(Counter(owners).values())
    free = [itertools.count(rank * most_items) for rank in range(world)]
    return owners, most_items, torch.tensor([next(free[owner]) for owner in owners])
