"""The admission queue: fits that one application runs at the same time, as CrossValidator does, wait here for slots."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl_comm.errors import DeadlineError

_log = logging.getLogger(__name__)

#: Seconds after which a fit that waits says so, again and again.
TELL_SECONDS = 60.0


class AdmissionQueue:
    """Admits gangs in the order in which they come, each as soon as there are slots for all of its ranks.

    Without this queue Spark would hold back the tasks of a gang that does not fit beside another, and the time that the gang
    spends waiting would count as time without slots. A gang that waits says so every minute.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._used = 0

    @contextmanager
    def admitted(self, ranks: int, slots: int | None, timeout: float) -> Iterator[None]:
        """A context that waits for admission, and then holds as many of the cluster's slots as the gang has ranks.

        :param slots: of the whole cluster. None: their number is not known, so the gang is admitted alone.
        :raises DeadlineError: the gang was not admitted within ``timeout`` seconds.
        """
        ticket = object()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._fits(ranks, slots),
                    max(0.0, min(TELL_SECONDS, deadline - time.monotonic())),
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


#: The queue of this process, which has one Spark application.
ADMISSION = AdmissionQueue()
