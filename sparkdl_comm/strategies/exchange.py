"""What all ranks do with a bucket of a flat vector, such as adding their gradients up."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.strategies.base import StepInfo, Stopwatch


class Pending(NamedTuple):
    """An exchange of the elements ``start`` to ``stop`` that was begun.

    ``wait()`` returns when they are final on this rank, or raises why they cannot be. ``is_over()``: whether it would do so at
    once.
    """

    start: int
    stop: int
    wait: Callable[[], object]
    is_over: Callable[[], bool]


class BucketExchange(ABC):
    """One rank's part. Buckets are ranges of one flat vector, float32, which the exchange changes in place.

    Some gradients must come through (see ``space/flat.py``):

    * one that is -0.0 on all ranks must be -0.0 afterwards: no rank used that parameter. To add +0.0 to it loses that;
    * one that a rank used must not become -0.0, as small negative ones do if they are rounded: so add +0.0 to these;
    * with precision fp16 they are multiples of a scale that changes, and may be infinite or NaN, in a step that is then
      skipped: what is kept of them for the next step must not be NaN for ever.

    The order of the calls, which is the same on all ranks::

        prepare                 once, with all buckets
        load_state              where training goes on from a checkpoint
        for each step:
            begin_step
            start               for each bucket, whose elements are then the exchange's until its wait returns
            wait                of each Pending, in any order
            end_step
        state                   between steps, where a checkpoint is written
        close
    """

    @abstractmethod
    def prepare(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Connects, and works out, what the exchange of these ranges needs. Others may be started too, but begin later."""

    @abstractmethod
    def start(self, start: int, stop: int) -> Pending:
        """Begins the exchange of a range, and counts the bytes that come to this rank for it."""

    def begin_step(self, info: StepInfo) -> None:  # noqa: B027 - most exchanges do the same in all steps
        """Which step it is."""

    def end_step(self, applied: bool) -> None:  # noqa: B027 - most exchanges keep nothing
        """Its sums were used for an update; they were not, on all ranks, if not ``applied``."""

    def close(self) -> None:  # noqa: B027 - most exchanges have nothing of their own
        """Gives back what the exchange itself made, while the group is still open or after."""

    def state(self) -> dict[str, Any]:
        """What this rank keeps from step to step, such as what compression left out; as :meth:`Strategy.state`."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most exchanges keep nothing
        """What :meth:`state` returned on the rank of the same number in a gang of the same size."""

    def details(self) -> dict[str, Any]:
        """As :meth:`Strategy.details`."""
        return {}


class CollectiveExchange(BucketExchange):
    """Every bucket takes part as a whole in one collective of ``operation`` (sum) by ``group``.

    :param vector: the flat vector, on the group's device.
    :param watch: is told of the bytes: those that are combined with this rank's own as pushed, others as pulled.
    :param roots: the root of each range by its first element; rank 0 is that of all others.
    """

    def __init__(
        self,
        gang: Gang,
        group: CollectiveGroup,
        operation: Operation,
        vector: torch.Tensor,
        watch: Stopwatch,
        roots: Mapping[int, int] | None = None,
    ) -> None:
        self._gang, self._group, self._operation, self._vector, self._watch = gang, group, operation, vector, watch
        self._roots = roots or {}
        self._counted: dict[tuple[int, int], dict[str, int]] = {}

    def prepare(self, ranges: Sequence[tuple[int, int]]) -> None:
        for start, stop in ranges:
            self._group.prepare(self._operation, stop - start, self._vector.dtype, self._roots.get(start, 0))

    def start(self, start: int, stop: int) -> Pending:
        root = self._roots.get(start, 0)
        with self._typed():
            work = self._group.start(self._operation, self._vector[start:stop], root=root)
        for way, nbytes in self._arriving(stop - start, root).items():
            self._watch.bytes[way] += nbytes

        def wait() -> None:
            with self._typed():
                work.wait()

        return Pending(start, stop, wait, lambda: work.is_over)

    def _arriving(self, count: int, root: int) -> dict[str, int]:
        """Bytes that come to this rank: to be combined with its own, and complete ones."""
        if (count, root) not in self._counted:
            combined, complete = self._group.arriving(self._operation, count, self._vector.dtype, root)
            self._counted[count, root] = {"push": combined, "pull": complete}
        return self._counted[count, root]

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Raises the gang's failure, if there is one, instead of what it looks like from here."""
        try:
            yield
        except SparkdlCommError:
            self._gang.check(VERDICT_SECONDS)
            raise
