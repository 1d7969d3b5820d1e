"""Buckets of layers, which follow the ranks' measurements. The executor of rank 0 decides for all ranks."""

from __future__ import annotations

from typing import Any

from sparkdl_comm.gang.exchange import decide_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.ps.profiler import Profiler
from sparkdl_comm.strategies.ps.session import Session


class AdaptiveBuckets:
    """Buckets of one rank; all ranks have the same buckets in the same step. AdaptiveBuckets.scala decides about them.

    ``pulls``, ``pushes``: buckets of parameters and of gradients that rank 0 decided last. ``profiler``: measures this rank's
    compute times; None if no policy needs them.
    """

    def __init__(
        self, session: Session, gang: Gang, first: dict[str, Any], profile_iterations: int, timeout: float
    ) -> None:
        """``first``: the answer of :meth:`Session.open`, with the first buckets."""
        self._session, self._gang, self._timeout = session, gang, timeout
        self._learn(first)
        layers = len(self.pulls.of)
        self.profiler = None if self._next_look is None else Profiler(layers, profile_iterations)

    def due(self, step: int) -> bool:
        """Return True if all ranks must call :meth:`replan` after this step, counted from 1."""
        return step == self._next_look

    def replan(self) -> bool:
        """Send this rank's measurements to rank 0, and get its decision. Return True if the buckets were planned again.

        All ranks call it in the same step. It takes one round trip to rank 0.
        """
        assert self.profiler is not None, "nothing is due"
        measured = self._session.measured(self.profiler.times())
        decided = decide_json(self._gang, measured, self._session.replan, self._timeout)
        self._learn(decided)
        planned: bool = decided["planned"]
        return planned

    def report(self) -> dict[str, Any]:
        """Return the last plan of each direction for the run's summary. Rank 0 only. See AdaptiveBuckets.scala."""
        return self._session.batching()

    def _learn(self, told: dict[str, Any]) -> None:
        self.pulls, self.pushes = LayerBuckets(told["pull"]), LayerBuckets(told["push"])
        self._next_look: int | None = told["next_look"]
