"""Queue in which fits of one application wait for slots, when they run at the same time (as in CrossValidator)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl_comm.errors import DeadlineError

_log = logging.getLogger(__name__)

#: Seconds between two log lines of a fit that waits.
LOG_INTERVAL_SECONDS = 60.0


class AdmissionQueue:
    """Queue that admits gangs first come, first served, each once there are slots for all of its ranks.

    Without this queue, Spark would hold back the tasks of a gang that does not fit beside another one. The time that
    this gang waits would then count as time without slots. A waiting gang logs its state every minute.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: list[object] = []
        self._used_slots = 0

    @contextmanager
    def admit(self, ranks: int, slots: int | None, timeout: float) -> Iterator[None]:
        """Wait for admission, then hold one slot per rank until the context ends.

        :param ranks: number of ranks of the gang.
        :param slots: number of slots in the whole cluster. None: unknown, so the gang is admitted only while no other
            runs.
        :param timeout: seconds to wait.
        :raises DeadlineError: the gang was not admitted within ``timeout`` seconds.
        """
        ticket = object()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._tickets.append(ticket)
            try:
                while not self._changed.wait_for(
                    lambda: self._tickets[0] is ticket and self._fits(ranks, slots),
                    max(0.0, min(LOG_INTERVAL_SECONDS, deadline - time.monotonic())),
                ):
                    before = self._tickets.index(ticket)
                    state = f"{before} others are before it, and {self._used_slots} of {slots} slots in use"
                    if time.monotonic() >= deadline:
                        raise DeadlineError(
                            f"a fit with {ranks} ranks waited {timeout:g} s for its turn (spark.sparkdl.comm.turnTimeout):"
                            f" {state}. Set turnTimeout to more than the other fits of this application take, or run fewer"
                            " fits at a time (parallelism of CrossValidator)"
                        )
                    _log.warning("a fit with %d ranks waits for its turn: %s", ranks, state)
                self._used_slots += ranks
            finally:
                self._tickets.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used_slots -= ranks
                self._changed.notify_all()

    def _fits(self, ranks: int, slots: int | None) -> bool:
        return self._used_slots == 0 or (slots is not None and self._used_slots + ranks <= slots)


#: The queue of this process. A process has one Spark application.
ADMISSION = AdmissionQueue()
