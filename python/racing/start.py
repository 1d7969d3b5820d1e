"""The moment at which a race begins. What changes the links waits for it, so that all systems meet the same rates at the
same time, however long their processes take to start."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
from racing.curve import Curve

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
