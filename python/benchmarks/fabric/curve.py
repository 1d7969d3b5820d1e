"""How a model became better: copies of it with their times, which are looked at when the run is over. And the moment at which
a race begins: what changes the links waits for it, so that all systems meet the same rates at the same time, however long
their processes take to start.
"""

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
    """``folder``: that all processes of the race share. ``every``: updates after which the model is copied."""

    def __init__(self, folder: Path, every: int) -> None:
        self._file, self._every = folder / "begun", every
        self._begun = self._spare = 0.0

    def begin(self) -> Curve:
        """At the rank whose clock counts, once all are ready."""
        self._file.touch()
        self._begun, self._spare = time.monotonic(), _spare_seconds()
        return Curve(self._every)

    def wait(self, over: threading.Event) -> None:
        """Elsewhere: returns when the race has begun, or ``over`` is set."""
        while not self._file.exists() and not over.wait(_LOOK_AGAIN):
            pass

    def busy_cores(self) -> float:
        """How many of the machine's cores were busy since the beginning, in the mean, whoever used them; but for what runs at
        a lower priority, as that gives way."""
        cores = psutil.cpu_count() or 1
        busy = cores - (_spare_seconds() - self._spare) / (time.monotonic() - self._begun)
        return min(max(busy, 0.0), float(cores))  # the system counts in hundredths of a second


def _spare_seconds() -> float:
    """Of all cores together."""
    times = psutil.cpu_times()
    return float(times.idle + times.nice + getattr(times, "iowait", 0.0))


class Moment(NamedTuple):
    """``seconds`` since the beginning; ``updates`` that were in the model."""

    seconds: float
    updates: int
    score: float


class Curve:
    """Time counts from when it is made.

    :param every: updates after which the model is copied.
    :param clock: seconds, from any beginning.
    """

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock, self._begun = every, clock, clock()
        self._copies: list[tuple[float, int, np.ndarray]] = []

    def add(self, updates: int, model: np.ndarray) -> None:
        """The model has so many updates now, float32 ``[n]``."""
        if not self._copies or updates // self._every > self._copies[-1][1] // self._every:
            self._copies.append((self._clock() - self._begun, updates, model.copy()))

    @property
    def last(self) -> np.ndarray | None:
        """The model when it was copied last; None if it never was."""
        return self._copies[-1][2] if self._copies else None

    def moments(self, score: Callable[[np.ndarray], float]) -> list[Moment]:
        return [Moment(seconds, updates, score(model)) for seconds, updates, model in self._copies]


def first(moments: list[Moment], reached: Callable[[float], bool]) -> Moment | None:
    """When the goal was reached; None if it never was."""
    return next((moment for moment in moments if reached(moment.score)), None)
