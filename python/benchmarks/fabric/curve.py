"""Beginning of a race, and copies of the model during it, which are evaluated when the race is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

#: Seconds after which a file is looked for again.
_LOOK_AGAIN = 0.01


class Start:
    """Beginning of a race. Links begin to change then, so that all systems meet the same rates at the same time.

    :param file: file that the beginning makes, known to all processes of the race.
    :param every: updates after which the model is copied.
    """

    def __init__(self, file: Path, every: int) -> None:
        self._file, self._every = file, every
        self._begun = self._spare = 0.0

    def begin(self) -> Curve:
        """Begin the race, at the rank whose clock counts, once all are ready."""
        self._file.touch()
        self._begun, self._spare = time.monotonic(), _spare_seconds()
        return Curve(self._every)

    def wait(self, over: threading.Event) -> None:
        """Wait until the race has begun, or ``over`` is set."""
        while not self._file.exists() and not over.wait(_LOOK_AGAIN):
            pass

    def busy_cores(self) -> float:
        """Return the mean number of the machine's busy cores since the beginning. Low-priority work does not count."""
        cores = psutil.cpu_count() or 1
        busy = cores - (_spare_seconds() - self._spare) / (time.monotonic() - self._begun)
        return min(max(busy, 0.0), float(cores))  # the system counts in hundredths of a second


def _spare_seconds() -> float:
    """Return the idle seconds of all cores together."""
    times = psutil.cpu_times()
    return float(times.idle + times.nice + getattr(times, "iowait", 0.0))


class Moment(NamedTuple):
    """Score of a copy. ``seconds`` since the beginning; ``updates`` in the model then."""

    seconds: float
    updates: int
    score: float


class Curve:
    """Copies of a model with their times, seconds since the curve was made.

    :param every: updates after which the model is copied.
    """

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock, self._begun = every, clock, clock()
        self._copies: list[tuple[float, int, np.ndarray]] = []

    def add(self, updates: int, model: np.ndarray) -> None:
        """Record that the model, float32 ``[n]``, now has so many updates."""
        if not self._copies or updates // self._every > self._copies[-1][1] // self._every:
            self._copies.append((self._clock() - self._begun, updates, model.copy()))

    @property
    def last(self) -> np.ndarray | None:
        """Last copy of the model, or None."""
        return self._copies[-1][2] if self._copies else None

    def moments(self, score: Callable[[np.ndarray], float]) -> list[Moment]:
        return [Moment(seconds, updates, score(model)) for seconds, updates, model in self._copies]


def first(moments: list[Moment], reached: Callable[[float], bool]) -> Moment | None:
    """Return the first moment whose score has reached the goal, or None."""
    return next((moment for moment in moments if reached(moment.score)), None)
