"""Measurement of a rank's step times, and of the compute time in them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from statistics import fmean

from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.candidates import StepTimings


class StepTimer:
    """Step times of one rank since the last :meth:`restart`.

    Order of the calls in a step: :meth:`begin`; :meth:`backward` around the step's last backward pass, if there is one;
    :meth:`update` around the update; :meth:`end`.
    """

    def __init__(
        self,
        model: FlatModel,
        clock: Callable[[], float] = time.perf_counter,
        wait_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``wait_seconds``: returns the seconds that the rank has waited for parameters so far; they are not compute time."""
        self._model, self._clock, self._wait_seconds = model, clock, wait_seconds
        self.restart(0)

    def restart(self, skipped_steps: int) -> None:
        """Forget all steps. The next ``skipped_steps`` steps are not measured."""
        self._skipped_steps = skipped_steps
        self.seconds: list[float] = []
        self._timings: list[StepTimings] = []

    def begin(self) -> None:
        self._begin_at, self._waited_before = self._clock(), self._wait_seconds()
        self._forward = self._backward = self._updating = 0.0
        self._arrivals = [0.0] * len(self._model.parameters)

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        self._backward_at = self._clock()
        self._forward = self._backward_at - self._begin_at - (self._wait_seconds() - self._waited_before)
        try:
            with self._model.listen(self._on_gradient):
                yield
        finally:
            self._backward = self._clock() - self._backward_at

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        begin_at = self._clock()
        try:
            yield
        finally:
            self._updating = self._clock() - begin_at

    def end(self) -> None:
        if self._skipped_steps:
            self._skipped_steps -= 1
            return
        self.seconds.append(self._clock() - self._begin_at)
        self._timings.append(StepTimings(self._forward, self._backward, self._updating, tuple(self._arrivals)))

    def average_timings(self) -> StepTimings:
        """Return the mean over the measured steps. A gradient that never arrived counts as ready at the start of backward."""
        forward, backward, update = (
            fmean(getattr(each, name) for each in self._timings) for name in ("forward", "backward", "update")
        )
        arrivals = zip(*(each.arrivals for each in self._timings), strict=True)
        return StepTimings(forward, backward, update, tuple(map(fmean, arrivals)))

    def _on_gradient(self, number: int) -> None:
        self._arrivals[number] = self._clock() - self._backward_at
