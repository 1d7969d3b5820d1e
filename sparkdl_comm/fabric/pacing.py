"""How many bytes of a transfer may have left by a time: user-space pacing to the rates that the scheduler reserved.

Times in a schedule count from when it was made. Its receiver counts from when it came, so that clocks of hosts need not
agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparkdl_comm.errors import InputError


class Slice(NamedTuple):
    """From ``start`` to ``stop``, in seconds, at ``rate`` bytes per second."""

    start: float
    stop: float
    rate: float


class Pacing:
    """A schedule of one transfer: slices in order, which do not overlap. After the last one there is no limit: what is left
    then is late, and only the network holds it up. An empty schedule is no limit.

    :raises InputError: slices that are out of order, or no numbers.
    """

    def __init__(self, slices: Sequence[Slice], begin: float, gone: float = 0.0) -> None:
        """``begin``: the time, by the caller's clock, from which the slices count. ``gone``: bytes that have left before."""
        end = 0.0
        for piece in slices:
            if not (end <= piece.start <= piece.stop < math.inf and 0 <= piece.rate < math.inf):
                raise InputError(f"a transfer cannot be paced by {piece} after {end:g} s")
            end = piece.stop
        self._slices, self._begin, self._end, self._gone = slices, begin, begin + end, gone

    def allowed(self, now: float) -> float:
        """Bytes that may have left by ``now``; infinity after the end."""
        if now >= self._end:
            return math.inf
        past = now - self._begin
        return self._gone + sum(p.rate * max(0.0, min(past, p.stop) - p.start) for p in self._slices)

    def when(self, count: float) -> float:
        """The earliest time at which ``count`` bytes may have left."""
        sent = self._gone
        if count <= sent:
            return self._begin
        for piece in self._slices:
            room = piece.rate * (piece.stop - piece.start)
            if sent + room >= count and piece.rate:
                return self._begin + piece.start + (count - sent) / piece.rate
            sent += room
        return self._end
