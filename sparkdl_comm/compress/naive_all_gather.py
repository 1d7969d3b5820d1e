"""Compressed sum by an all-gather of the selections of all ranks (NaiveAG)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.compress.compressed_sum import WholeRangeSum
from sparkdl_comm.compress.flat_range import RangeFactory
from sparkdl_comm.compress.sparsifier import Sparsifier


class NaiveAllGather(WholeRangeSum):
    """Compressed sum for which every rank selects from its own gradient, gathers all selections and adds them up.

    Steps: those of the all-gather.
    Bytes on the wire: (N-1) s into each rank, where s is the bytes of one rank's elements.

    NaiveAG in Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of Deep
    Learning on Public Cloud Clusters", 2021.

    :param group: runs the all-gathers.
    """

    def __init__(self, sparsifier: Sparsifier, make_range: RangeFactory, group: CollectiveGroup, world: int) -> None:
        super().__init__(sparsifier.feedback, make_range, group, world)
        self._sparsifier = sparsifier

    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        part = self.own_range(start, start + vector.numel())
        packed = self._sparsifier.encode(part, vector, density, scale)
        gathered = packed.new_empty((self._world, packed.numel()))
        work = self._group.all_gather(packed, gathered)
        yield
        work.wait()
        self._sparsifier.sum_selections(part, list(gathered), density, vector)

    def arriving_bytes(self, start: int, stop: int, density: float) -> int:
        return (self._world - 1) * self._sparsifier.make_format(self.own_range(start, stop), density).nbytes

    def state(self) -> dict[str, Any]:
        return self._sparsifier.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._sparsifier.load_state(state)
