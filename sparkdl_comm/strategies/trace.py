"""Trace of a rank's last iterations, from which ``sparkdl_comm.report.timeline`` makes a timeline.

Times are seconds of the rank's ``time.perf_counter``, on Linux the machine's monotonic clock. The executor's JVM and all ranks
of a machine share it. Clocks of different machines differ; see :func:`read_clocks`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang

#: Number of exchanges that compare the clocks of several machines; the fastest one counts.
_CLOCK_ROUNDS = 8


class Trace:
    """Trace that keeps the last ``limit`` iterations."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._limit = limit
        #: Number of the current iteration.
        self.current = 0
        self._spans: dict[int, list[dict[str, Any]]] = {}

    def begin_iteration(self, number: int) -> None:
        """Begin iteration ``number``, counted from 1. Spans belong to it unless they name another iteration."""
        self.current = number
        for old in [known for known in self._spans if known <= number - self._limit]:
            del self._spans[old]

    def add(self, name: str, begin: float, end: float, iteration: int | None = None, **about: Any) -> None:
        """Add a span from ``begin`` to ``end``. ``about``: more fields, JSON-able, such as ``batch`` for a batch of layers."""
        spans = self._spans.setdefault(self.current if iteration is None else iteration, [])
        spans.append({"name": name, "begin": begin, "end": end, **about})

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add a span around the block to the current iteration, also if the block raises. May be used on any thread."""
        begin = self.clock()
        try:
            yield
        finally:
            self.add(name, begin, self.clock())

    def report(self, gang: Gang, timeout: float, parameter_bytes: int) -> dict[str, Any]:
        """Return the input of :class:`sparkdl_comm.report.timeline.Timeline`, JSON-able. All ranks call it.

        :param parameter_bytes: bytes of the model's parameters as float32.
        """
        numbers = [number for number in sorted(self._spans) if 0 < number <= self.current]
        iterations = [{"iteration": number, "spans": self._spans[number]} for number in numbers]
        clocks = read_clocks(gang, timeout, self.clock)
        return {"clocks": clocks, "parameter_bytes": parameter_bytes, "iterations": iterations}


def read_clocks(gang: Gang, timeout: float, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Return this rank's input for :func:`estimate_offset`. All ranks call it.

    ``boot``: the machine's boot id. ``sent``, ``received``: seconds at which this rank began and ended each of some exchanges
    between all ranks.
    """
    sent, received = [], []
    for _ in range(_CLOCK_ROUNDS):
        sent.append(clock())
        gather_json(gang, None, timeout)
        received.append(clock())
    return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "sent": sent, "received": received}


def estimate_offset(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Return how far ``own`` clock is ahead of the ``other``, and the largest error of that; seconds.

    No rank receives an exchange before every rank has sent its part. This bounds the difference from both sides. Ranks of one
    machine share a clock.
    """
    if own["boot"] == other["boot"]:
        return 0.0, 0.0
    least = max(sent - received for sent, received in zip(own["sent"], other["received"], strict=True))
    most = min(received - sent for received, sent in zip(own["received"], other["sent"], strict=True))
    return (least + most) / 2, (most - least) / 2
