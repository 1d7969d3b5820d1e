"""Discrete-event engine. The earliest event is next; events at the same time keep the order of their creation."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Engine:
    """Queue of events. ``now``: virtual seconds since the beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._stopped = False

    def at(self, time: float, action: Action) -> None:
        """Schedule ``action`` for this time, or for now if the time has passed."""
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def stop(self) -> None:
        """End :meth:`run` after the current event."""
        self._stopped = True

    def run(self, until: float) -> None:
        """Run all events before ``until``, or until :meth:`stop`."""
        while self._events and not self._stopped and self._events[0][0] < until:
            self.now, _, action = heapq.heappop(self._events)
            action()
