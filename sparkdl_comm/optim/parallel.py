"""The parallel tensor operator (PTO) of the CommLib paper, section 4.2: what all ranks would compute alike, of tensors that
all of them have, is dealt out over the ranks, and the results, small, are all-gathered.

It pays where an all-gather of the results takes less time than a rank saves.
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
    """Those among whom something is dealt; a :class:`sparkdl_comm.Communicator` is one."""

    rank: int
    world: int

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """New tensor ``[world, *tensor.shape]`` of the ranks' tensors, which are alike in shape and dtype."""


class Alone:
    """A rank without others."""

    rank, world = 0, 1

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unsqueeze(0)


class GangRanks:
    """The ranks of a gang, which gather through rank 0, in one trip: for kilobytes. ``timeout``: seconds it may take."""

    def __init__(self, gang: Gang, timeout: float) -> None:
        self.rank, self.world = gang.rank, gang.world
        self._gang, self._timeout = gang, timeout

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """As :meth:`Ranks.all_gather`; up to 4 MiB per rank.

        Its errors are those of :meth:`sparkdl_comm.gang.gang.Gang.all_gather`.
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
    """``op`` of each of the tensors: ``[len(tensors), *shape]`` of ``dtype``, in their order, on the first one's device.

    All ranks call it, with tensors of the same values in the same order. Each calls ``op`` for its part of them, with about
    as many elements as the others', then there is one all-gather. All ranks have the same bits, those of the rank that
    computed them, also where ranks' processors do not round alike.

    :param ranks: a :class:`sparkdl_comm.Communicator`, in a function that CommDistributor runs.
    :param shape: of each result; of a number, ``()``.
    :raises InputError: ``op`` returned something of another shape. Raised on the rank that called it.

    Other errors are those of ``op`` and of the all-gather. Where ``op`` raises on one rank, the others wait for it until
    they hear that it failed.
    """
    if not tensors:
        return torch.empty((0, *shape), dtype=dtype)
    owners, most, places = _layout(tuple(tensor.numel() for tensor in tensors), ranks.world)
    mine = torch.zeros((most, *shape), dtype=dtype, device=tensors[0].device)
    results = [op(tensor) for tensor, owner in zip(tensors, owners, strict=True) if owner == ranks.rank]
    for result in results:
        if result.shape != mine.shape[1:]:
            raise InputError(
                f"parallel: op returned a tensor of shape {list(result.shape)}, and shape={list(shape)} was announced"
            )
    if results:
        mine[: len(results)] = torch.stack(results)
    return ranks.all_gather(mine).flatten(0, 1)[places.to(mine.device)]


def deal(loads: Sequence[int], world: int) -> list[int]:
    """Which of ``world`` ranks each thing is dealt to, so that the largest sum of a rank's loads is small: the largest things
    first, each to the rank that has the least (longest processing time first; at most 4/3 - 1/(3 world) times the least
    possible). The same on all ranks.
    """
    owners = [0] * len(loads)
    heap = [(0, rank) for rank in range(world)]
    for index in sorted(range(len(loads)), key=lambda index: -loads[index]):
        load, owner = heap[0]
        owners[index] = owner
        heapq.heapreplace(heap, (load + loads[index], owner))
    return owners


@functools.lru_cache(maxsize=16)  # a step's tensors are those of the last one
def _layout(loads: tuple[int, ...], world: int) -> tuple[list[int], int, torch.Tensor]:
    """The owners, the most things that one has, and the row of each thing where all ranks have so many, in their order."""
    owners = deal(loads, world)
    most = max(Counter(owners).values())
    free = [itertools.count(rank * most) for rank in range(world)]
    return owners, most, torch.tensor([next(free[owner]) for owner in owners])
