"""Sums over the ranks of gradients of which less travels than all: the interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.compress.feedback import Feedback
from sparkdl_comm.compress.part import Part, PartOf


class CompressedSum(ABC):
    """One rank's part in sums of a flat vector's ranges. Those that select elements are told of which share, the density."""

    #: What does not travel, and its momentum.
    feedback: Feedback

    @abstractmethod
    def own(self, start: int, stop: int) -> Part:
        """That part of a range which this rank compresses."""

    @property
    @abstractmethod
    def contributors(self) -> int:
        """How many ranks compress one part."""

    @abstractmethod
    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        """For :class:`~sparkdl_comm.compress.stages.Stages`: makes ``vector`` the sum, in place.

        :param vector: float32 ``[n]``, the range from ``start`` on, a multiple of ``scale``.
        """

    @abstractmethod
    def arriving(self, start: int, stop: int, density: float) -> int:
        """Bytes that come to this rank."""

    def settle(self, applied: bool) -> None:  # noqa: B027 - most keep nothing from step to step
        """The step is over; it was skipped, on all ranks, if not ``applied``."""

    def state(self) -> dict[str, Any]:
        """For checkpoints: what the next step's sums begin with; tensors are not copied."""
        return self.feedback.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned.

        :raises PersistenceError: the checkpoint is of other settings of compression.
        """
        self.feedback.load_state(state)

    def close(self) -> None:  # noqa: B027 - groups may be another's
        """Gives back what this object made."""


class SumOfWholeRanges(CompressedSum):
    """Every rank compresses the whole range.

    :param group: all ``world`` ranks. Who gave it closes it.
    """

    def __init__(self, feedback: Feedback, part_of: PartOf, group: CollectiveGroup, world: int) -> None:
        self.feedback = feedback
        self._part_of, self._group, self._world = part_of, group, world

    def own(self, start: int, stop: int) -> Part:
        return self._part_of(start, stop)

    @property
    def contributors(self) -> int:
        return self._world
