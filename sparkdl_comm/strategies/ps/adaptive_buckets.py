"""Which buckets the layers travel in: this rank measures, and asks the executor of rank 0, which decides for all ranks."""

from __future__ import annotations

from typing import Any

from sparkdl_comm.gang.exchange import decide_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.ps.profiler import Profiler
from sparkdl_comm.strategies.ps.session import Session


class AdaptiveBuckets:
    """The buckets of one rank; all ranks have the same ones in the same step. How they are decided: AdaptiveBuckets.scala.

    ``pulls``, ``pushes``: those that this rank was told last. ``profiler``: measures what this rank computes; None if no
    policy needs it.
    """

    def __init__(
        self, session: Session, gang: Gang, first: dict[str, Any], profile_iterations: int, timeout: float
    ) -> None:
        """``first``: the executor's answer to ``open``."""
        self._session, self._gang, self._timeout = session, gang, timeout
        self._learn(first)
        layers = len(self.pulls.of)
        self.profiler = None if self._next_look is None else Profiler(layers, profile_iterations)

    def due(self, step: int) -> bool:
        """Whether all ranks look at the profile after this step, counted from 1."""
        return step == self._next_look

    def replan(self) -> bool:
        """Whether the buckets were planned anew, from what all ranks measured.

        All ranks call it in the same step. Takes one trip to rank 0.
        """
        assert self.profiler is not None, "nothing is due"
        measured = self._session.measured(self.profiler.times())
        decided = decide_json(self._gang, measured, self._session.replan, self._timeout)
        self._learn(decided)
        planned: bool = decided["planned"]
        return planned

    def report(self) -> dict[str, Any]:
        """At rank 0: the last plan of each direction, for the run's summary. See AdaptiveBuckets.scala."""
        return self._session.batching()

    def _learn(self, told: dict[str, Any]) -> None:
        self.pulls, self.pushes = LayerBuckets(told["pull"]), LayerBuckets(told["push"])
        self._next_look: int | None = told["next_look"]
