"""Buckets of layers, which follow the ranks' measurements. The executor of rank 0 decides for all ranks."""

from __future__ import annotations

from typing import Any

from sparkdl_comm.gang.exchange import decide_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.ps.profiler import Profiler


class AdaptiveBuckets:
    """Buckets of one rank; all ranks have the same buckets in the same step. AdaptiveBuckets.scala decides about them.

    ``pulls``, ``pushes``: buckets of parameters and of gradients that rank 0 decided last. ``profiler``: measures this rank's
    compute times; None if no policy needs them.
    """

    def __init__(
        self, session: PsSession, gang: Gang, first: dict[str, Any], profile_iterations: int, timeout: float
    ) -> None:
        """``first``: the answer of :meth:`PsSession.open`, with the first buckets."""
        self._session, self._gang, self._timeout = session, gang, timeout
        self._apply(first)
        layers = len(self.pulls.of)
        self.profiler = None if self._next_replan_step is None else Profiler(layers, profile_iterations)

    def is_due(self, step: int) -> bool:
        """Return True if all ranks must call :meth:`replan` after this step, counted from 1."""
        return step == self._next_replan_step

    def replan(self) -> bool:
        """Send this rank's measurements to rank 0, and get its decision. Return True if the buckets were planned again.

        All ranks call it in the same step. It takes one round trip to rank 0.
        """
        assert self.profiler is not None, "nothing is due"
        measured = self._session.report_measurements(self.profiler.get_times())
        decision = decide_json(self._gang, measured, self._session.replan, self._timeout)
        self._apply(decision)
        planned: bool = decision["planned"]
        return planned

    def report(self) -> dict[str, Any]:
        """Return the last plan of each direction for the run's summary. Rank 0 only. See AdaptiveBuckets.scala."""
        return self._session.get_plan()

    def _apply(self, decision: dict[str, Any]) -> None:
        self.pulls, self.pushes = LayerBuckets(decision["pull"]), LayerBuckets(decision["push"])
        self._next_replan_step: int | None = decision["next_look"]
