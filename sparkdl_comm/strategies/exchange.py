"""Exchange of buckets of a flat vector between all ranks, such as the sum of their gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.strategies.base import StepInfo, Stopwatch


class BucketExchange(ABC):
    """Exchange of one rank. Buckets are ranges of one flat float32 vector, which the exchange changes in place.

    An implementation must keep these properties of gradients (see ``space/flat.py``):

    * A gradient that is -0.0 on all ranks must stay -0.0: it marks a parameter that no rank used. Adding +0.0 would lose the
      mark.
    * A gradient that a rank used must not become -0.0. Rounding does that to small negative values, so add +0.0 to them.
    * With precision fp16, gradients are multiplied by a scale that changes. They may be infinite or NaN in a step that is
      then skipped. Residuals kept for the next step must not stay NaN.

    Order of the calls, the same on all ranks::

        prepare                 once, with all buckets
        load_state              only when training resumes from a checkpoint
        for each step:
            begin_step
            start               for each bucket; the caller must not touch its elements until wait returns
            wait                for each Work that start returned, in any order
            end_step
        state                   between steps, when a checkpoint is written
        close
    """

    @abstractmethod
    def prepare(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Open the connections and make the plans for these ranges. Other ranges may be started too, but begin more slowly."""

    @abstractmethod
    def start(self, start: int, stop: int) -> Work[Any]:
        """Start the exchange of a range, and count the bytes that this rank will receive for it.

        When a wait for the Work returns, the elements are final on this rank.
        """

    def begin_step(self, info: StepInfo) -> None:  # noqa: B027 - most exchanges do the same in all steps
        """Begin the step that ``info`` describes."""

    def end_step(self, applied: bool) -> None:  # noqa: B027 - most exchanges keep nothing
        """End the step. ``applied``: True if the update used the sums; the same on all ranks."""

    def close(self) -> None:  # noqa: B027 - most exchanges have nothing of their own
        """Release what the exchange itself made. The group may be open or closed."""

    def state(self) -> dict[str, Any]:
        """Return what this rank keeps from step to step, such as residuals. See :meth:`Strategy.state`."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most exchanges keep nothing
        """Load what :meth:`state` returned on the same rank of a gang of the same size."""

    def details(self) -> dict[str, Any]:
        """Return what the run's summary adds. See :meth:`Strategy.details`."""
        return {}


class CollectiveExchange(BucketExchange):
    """Exchange that runs one collective ``operation`` (sum) of ``group`` for each whole bucket.

    :param vector: the flat vector, on the group's device.
    :param watch: counts the received bytes: as "push" if they are added to this rank's own, as "pull" otherwise.
    :param roots: root rank of each range, by the range's first element. The default root is rank 0.
    """

    def __init__(
        self,
        group: CollectiveGroup,
        operation: Operation,
        vector: torch.Tensor,
        watch: Stopwatch,
        roots: Mapping[int, int] | None = None,
    ) -> None:
        self._group, self._operation, self._vector, self._watch = group, operation, vector, watch
        self._roots = roots or {}
        self._received_bytes: dict[tuple[int, int], dict[str, int]] = {}

    def prepare(self, ranges: Sequence[tuple[int, int]]) -> None:
        for start, stop in ranges:
            self._group.prepare(self._operation, stop - start, self._vector.dtype, self._roots.get(start, 0))

    def start(self, start: int, stop: int) -> Work[Any]:
        root = self._roots.get(start, 0)
        work = self._group.start(self._operation, self._vector[start:stop], root=root)
        for direction, nbytes in self._count_received(stop - start, root).items():
            self._watch.bytes[direction] += nbytes
        return work

    def _count_received(self, count: int, root: int) -> dict[str, int]:
        """Return the bytes that this rank will receive: "push" are added to its own, "pull" are final."""
        if (count, root) not in self._received_bytes:
            combined, complete = self._group.arriving_bytes(self._operation, count, self._vector.dtype, root)
            self._received_bytes[count, root] = {"push": combined, "pull": complete}
        return self._received_bytes[count, root]
