"""Fits of one application that run at the same time, as CrossValidator starts them, share the cluster's slots."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

#: Seconds after which a fit that waits says so, again and again.
_TELL_SECONDS = 60.0


class Turns:
    """Gangs wait here, first come, first served, until there are slots for all ranks of the first.

    Without this, Spark would hold back the tasks of a gang that does not fit beside another, and the time that
    it spends waiting would count as time without slots. A gang waits for as long as those before it run, and says so
    every minute; their own deadlines end them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._used = 0

    @contextmanager
    def turn(self, ranks: int, slots: int | None) -> Iterator[None]:
        """Wait; then hold ``ranks`` of the cluster's ``slots``. None, not known: alone on the cluster."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._fits(ranks, slots), _TELL_SECONDS
                ):
                    _log.warning(
                        "a fit with %d ranks waits for its turn: %d others are before it, and %d of %s slots in use",
                        ranks,
                        self._waiting.index(ticket),
                        self._used,
                        slots,
                    )
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
