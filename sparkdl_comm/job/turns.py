"""Fits of one application that run at the same time, as CrossValidator starts them, share the cluster's slots."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl_comm.errors import DeadlineError

_log = logging.getLogger(__name__)

#: Seconds after which a fit that waits says so, again and again.
_TELL_SECONDS = 60.0


class Turns:
    """Gangs wait here, first come, first served, until there are slots for all ranks of the first.

    Without this, Spark would hold back the tasks of a gang that does not fit beside another, and the time that
    it spends waiting would count as time without slots. A gang that waits says so every minute.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._used = 0

    @contextmanager
    def turn(self, ranks: int, slots: int | None, timeout: float) -> Iterator[None]:
        """Wait; then hold ``ranks`` of the cluster's ``slots``. None, not known: alone on the cluster.

        Raises DeadlineError after ``timeout`` seconds.
        """
        ticket = object()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._fits(ranks, slots),
                    max(0.0, min(_TELL_SECONDS, deadline - time.monotonic())),
                ):
                    state = (
                        f"{self._waiting.index(ticket)} others are before it, and {self._used} of {slots} slots in use"
                    )
                    if time.monotonic() >= deadline:
                        raise DeadlineError(
                            f"a fit with {ranks} ranks waited {timeout:g} s for its turn (spark.sparkdl.comm.turnTimeout):"
                            f" {state}. Set it to more than the other fits of this application take, or run fewer at a time"
                            " (parallelism of CrossValidator)"
                        )
                    _log.warning("a fit with %d ranks waits for its turn: %s", ranks, state)
                self._used += ranks
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= ranks
                self._changed.notify_all()

    def _fits(self, ranks: int, slots: int | None) -> bool:
        return self._used == 0 or (slots is not None and self._used + ranks <= slots)


#: Of this process: it has one Spark application.
TURNS = Turns()
