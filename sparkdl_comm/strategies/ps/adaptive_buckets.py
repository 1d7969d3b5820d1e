"""Buckets of layers, which follow the ranks' measurements. The executor of rank 0 decides for all ranks."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any

from sparkdl_comm.gang.exchange import decide_json
from sparkdl_comm.gang.frames import Clock
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.space.parameter_space import LayerBuckets

#: New buckets take effect after one iteration for pulls and after two for pushes. These iterations are not timed.
_SETTLING_ITERATIONS = 2


class LayerTimes:
    """Stopwatch for the seconds that each layer takes in a pass, forward or backward.

    It keeps the last ``window`` passes. The mark is the time at which the current interval began.
    """

    def __init__(self, layers: int, window: int, clock: Clock) -> None:
        self._layers, self._clock = layers, clock
        self._rounds: deque[list[float]] = deque(maxlen=window)
        self._round = [0.0] * layers
        self._since = 0.0
        self._layer: int | None = None

    def begin(self) -> None:
        """Begin a pass, and set the mark. No layer runs yet."""
        self._round = [0.0] * self._layers
        self._layer = None
        self._since = self._clock()

    def stop(self) -> None:
        """Add the time since the mark to the running layer, if any. Then no layer runs."""
        if self._layer is not None:
            self._round[self._layer] += self._clock() - self._since
        self._layer = None

    def start_layer(self, layer: int) -> None:
        """Stop the running layer. Let ``layer`` run from now on, and set the mark."""
        self.stop()
        self._layer, self._since = layer, self._clock()

    def record_layer(self, layer: int) -> None:
        """Add the time since the mark to ``layer``, and set the mark."""
        now = self._clock()
        self._round[layer] += now - self._since
        self._since = now

    def skip(self) -> None:
        """Set the mark, so that the time since the last mark counts for no layer."""
        self._since = self._clock()

    def end(self) -> None:
        self.stop()
        self._rounds.append(self._round)

    def medians(self) -> list[float] | None:
        """Return the median seconds of each layer; None if there was no pass."""
        return [statistics.median(times) for times in zip(*self._rounds, strict=True)] if self._rounds else None


class Profiler:
    """Profiler of one rank. ``window``: number of steps over which medians are taken.

    ``has_rounds``: set it if backward made a gradient in several rounds. Then the times of layers are not reported.
    """

    def __init__(self, layers: int, window: int, clock: Clock = time.perf_counter) -> None:
        self.forward = LayerTimes(layers, window, clock)
        self.backward = LayerTimes(layers, window, clock)
        self._clock = clock
        self._updates: deque[float] = deque(maxlen=window)
        self._update_seconds = 0.0
        self._begin_at: float | None = None
        self._iterations: deque[float] = deque(maxlen=max(0, window - _SETTLING_ITERATIONS))
        self._settling = _SETTLING_ITERATIONS
        self.has_rounds = False

    def begin_iteration(self, update_seconds: float) -> None:
        """End the last iteration and begin the next. ``update_seconds``: total seconds spent in the optimizer so far."""
        now = self._clock()
        if self._begin_at is not None:
            if self._settling > 0:
                self._settling -= 1
            else:
                self._iterations.append(now - self._begin_at)
            self._updates.append(update_seconds - self._update_seconds)
        self._begin_at, self._update_seconds = now, update_seconds

    def restart(self) -> None:
        """Forget the iterations that were timed, and time none until new buckets take effect."""
        self._iterations.clear()
        self._settling = _SETTLING_ITERATIONS

    def get_times(self) -> dict[str, Any]:
        """Return the fields of ComputingTimes in Measurements.scala, JSON-able. None: not measured."""
        return {
            "forward": None if self.has_rounds else self.forward.medians(),
            "backward": None if self.has_rounds else self.backward.medians(),
            "update": statistics.median(self._updates) if self._updates else 0.0,
            "seconds": statistics.median(self._iterations) if self._iterations else None,
        }


class AdaptiveBuckets:
    """Buckets of one rank; all ranks have the same buckets in the same step. AdaptiveBuckets.scala decides about them.

    ``pulls``, ``pushes``: buckets of parameters and of gradients that rank 0 decided last. ``profiler``: measures this rank's
    compute times; None if no policy needs them.
    """

    def __init__(
        self, session: PsSession, gang: Gang, first: dict[str, Any], profile_iterations: int, timeout: float
    ) -> None:
        """``first``: the answer of :meth:`PsSession.open`, with the first buckets."""
        self._session, self._gang, self._timeout, self._window = session, gang, timeout, profile_iterations
        self._apply(first)
        layers = len(self.pulls.of)
        self.profiler = None if self._next_replan_step is None else Profiler(layers, profile_iterations)

    def is_due(self, step: int) -> bool:
        """Return True if all ranks must call :meth:`replan` after this step, counted from 1."""
        return step == self._next_replan_step

    def is_measured(self, step: int) -> bool:
        """Return True if the layers' times in this step, counted from 1, are part of the next measurements."""
        return self._next_replan_step is not None and step > self._next_replan_step - self._window

    def replan(self) -> bool:
        """Send this rank's measurements to rank 0, and get its decision. Return True if the buckets were planned again.

        All ranks call it in the same step. It takes one round trip to rank 0.
        """
        assert self.profiler is not None, "nothing is due"
        measured = self._session.report_measurements(self.profiler.get_times())
        decision = decide_json(self._gang, measured, self._session.replan, self._timeout)
        self._apply(decision)
        self.profiler.restart()
        planned: bool = decision["planned"]
        return planned

    def _apply(self, decision: dict[str, Any]) -> None:
        self.pulls, self.pushes = LayerBuckets(decision["pull"]), LayerBuckets(decision["push"])
        self._next_replan_step: int | None = decision["next_look"]
