"""Sums over the ranks of what each of them selects: the interface, and the all-gather of everything (NaiveAG)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.compress.sparsifier import Part, Sparsifier

#: The part of the flat vector from one element to another.
PartOf = Callable[[int, int], Part]


class SparseSum(ABC):
    """One rank's part in sums of a flat vector's ranges, of whose elements a share, the density, travels."""

    def __init__(self, sparsifier: Sparsifier, part_of: PartOf) -> None:
        self._sparsifier, self._part_of = sparsifier, part_of

    @abstractmethod
    def own(self, start: int, stop: int) -> Part:
        """That part of a range from which this rank selects."""

    @property
    @abstractmethod
    def contributors(self) -> int:
        """How many ranks select from one part."""

    @abstractmethod
    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        """For :class:`~sparkdl_comm.compress.stages.Stages`: makes ``vector`` the sum, in place.

        :param vector: float32 ``[n]``, the range from ``start`` on, a multiple of ``scale``.
        """

    @abstractmethod
    def arriving(self, start: int, stop: int, density: float) -> int:
        """Bytes that come to this rank."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what this object made."""


class NaiveAllGather(SparseSum):
    """Every rank selects from its own gradient, gets what all others selected, and adds all of it up.

    Steps: those of the all-gather.
    Bytes on the wire: (N-1) s into each rank, s the bytes of one rank's elements.

    NaiveAG in Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of Deep Learning on
    Public Cloud Clusters", 2021.

    :param group: all ranks; does all-gathers. Who gave it closes it.
    """

    def __init__(self, sparsifier: Sparsifier, part_of: PartOf, group: CollectiveGroup, world: int) -> None:
        super().__init__(sparsifier, part_of)
        self._group, self._world = group, world

    def own(self, start: int, stop: int) -> Part:
        return self._part_of(start, stop)

    @property
    def contributors(self) -> int:
        return self._world

    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        part = self.own(start, start + vector.numel())
        packed = self._sparsifier.encode(part, vector, density, scale)
        gathered = packed.new_empty((self._world, packed.numel()))
        work = self._group.all_gather(packed, gathered)
        yield
        work.wait()
        self._sparsifier.add_up(part, list(gathered), density, vector)

    def arriving(self, start: int, stop: int, density: float) -> int:
        return (self._world - 1) * self._sparsifier.format(self.own(start, stop), density).nbytes

    def close(self) -> None:
        """Nothing: the group is another's."""
