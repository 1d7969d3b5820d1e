"""User-space pacing: how many bytes of a transfer may be sent by a given time, at the rates that the scheduler
reserved.

Times in a schedule count from its creation. The receiver counts them from its arrival, so clocks of hosts need not
agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparkdl_comm.errors import InputError


class Slice(NamedTuple):
    """Interval of a schedule: from ``start`` to ``stop`` in seconds, at ``rate`` bytes per second."""

    start: float
    stop: float
    rate: float


class Pacing:
    """Schedule of one transfer: slices in order, without overlap.

    After the last slice there is no limit: the rest is late, and only the network limits it. An empty schedule sets no
    limit.

    :raises InputError: slices out of order, or values that are not finite.
    """

    def __init__(self, slices: Sequence[Slice], begin: float, sent_bytes: float = 0.0) -> None:
        """``begin``: time on the caller's clock from which the slices count. ``sent_bytes``: bytes sent before."""
        end = 0.0
        for piece in slices:
            if not (end <= piece.start <= piece.stop < math.inf and 0 <= piece.rate < math.inf):
                raise InputError(f"invalid {piece}: it must begin at {end:g} s or later, with finite times and rate")
            end = piece.stop
        self._slices, self._begin, self._end, self._sent_bytes = slices, begin, begin + end, sent_bytes

    def allowed_bytes(self, now: float) -> float:
        """Return how many bytes may be sent by ``now``; infinity after the last slice."""
        if now >= self._end:
            return math.inf
        elapsed = now - self._begin
        return self._sent_bytes + sum(p.rate * max(0.0, min(elapsed, p.stop) - p.start) for p in self._slices)

    def earliest_time(self, count: float) -> float:
        """Return the earliest time by which ``count`` bytes may be sent."""
        allowed = self._sent_bytes
        if count <= allowed:
            return self._begin
        for piece in self._slices:
            room = piece.rate * (piece.stop - piece.start)
            if allowed + room >= count and piece.rate:
                return self._begin + piece.start + (count - allowed) / piece.rate
            allowed += room
        return self._end
