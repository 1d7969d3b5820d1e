"""Compressed sums over the ranks: the interface, and the sum by an all-gather of all selections (NaiveAG)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.compress.feedback import Feedback
from sparkdl_comm.compress.flat_range import FlatRange, RangeFactory
from sparkdl_comm.compress.sparsifier import Sparsifier


class CompressedSum(ABC):
    """Sums over the ranks of ranges of a flat vector, with less traffic than the vector itself, for one rank.

    Implementations that select elements receive ``density``, the fraction of elements to select.
    """

    #: Residual, and its momentum.
    feedback: Feedback

    @abstractmethod
    def own_range(self, start: int, stop: int) -> FlatRange:
        """Return the part of a range that this rank compresses."""

    @property
    @abstractmethod
    def contributor_count(self) -> int:
        """Number of ranks that compress the same part."""

    @abstractmethod
    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        """Run the stages of a sum, for :class:`~sparkdl_comm.compress.stages.StageRunner`. ``vector`` becomes the sum, in
        place.

        :param vector: float32 ``[n]``: the range from ``start`` on, multiplied by ``scale``.
        """

    @abstractmethod
    def arriving_bytes(self, start: int, stop: int, density: float) -> int:
        """Return the number of bytes that this rank receives for the sum of elements ``start`` to ``stop``."""

    def settle(self, applied: bool) -> None:  # noqa: B027 - most implementations keep no state
        """End the step. ``applied`` is False if it was skipped, which all ranks do together."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, from which the next step's sums continue. Tensors are not copied."""
        return self.feedback.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`.

        :raises PersistenceError: the checkpoint was written with other settings of compression.
        """
        self.feedback.load_state(state)

    def close(self) -> None:  # noqa: B027 - an implementation may own nothing
        """Release the resources that this object created."""


class WholeRangeSum(CompressedSum):
    """Compressed sum in which every rank compresses the whole range.

    :param group: collectives of all ``world`` ranks. The caller closes it.
    """

    def __init__(self, feedback: Feedback, make_range: RangeFactory, group: CollectiveGroup, world: int) -> None:
        self.feedback = feedback
        self._make_range, self._group, self._world = make_range, group, world

    def own_range(self, start: int, stop: int) -> FlatRange:
        return self._make_range(start, stop)

    @property
    def contributor_count(self) -> int:
        return self._world


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
