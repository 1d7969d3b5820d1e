"""Exchanges in several stages. Many are under way at once, and all ranks begin their stages in the same order.

Connections match the collectives of different ranks by their order. So the order must not depend on which exchange
finishes first. In slot t, for t = 0, 1, ..., bucket t begins its stage 0, then bucket t - 1 its stage 1, and so on. A
slot begins when its bucket is given. After a step's last bucket, a slot begins when the previous slot has ended.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator

from sparkdl_comm.errors import GangError

#: Seconds between checks of a waiting caller that the thread is alive. The thread's own waits have deadlines.
_ALIVE_CHECK_SECONDS = 1.0


class StagedExchange:
    """Exchange of a bucket, given to :class:`StageRunner`."""

    def __init__(self, stages: Iterator[None], is_last: bool, is_alive: Callable[[], bool]) -> None:
        """Create an exchange. Internal: use :meth:`Stages.start`."""
        self.stages, self.is_last = stages, is_last
        self.error: Exception | None = None
        self._is_alive = is_alive
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._callback: Callable[[StagedExchange], object] | None = None

    def wait(self) -> None:
        """Wait until the exchange is complete here, and raise its error if it failed."""
        while not self._ended.wait(_ALIVE_CHECK_SECONDS):
            if not self._is_alive() and not self._ended.is_set():
                raise GangError("the exchange was closed while a bucket was under way")
        if self.error is not None:
            raise self.error

    @property
    def is_over(self) -> bool:
        """True if the exchange has ended here, with or without an error."""
        return self._ended.is_set()

    def then(self, callback: Callable[[StagedExchange], object]) -> None:
        """Call ``callback`` once when the exchange has ended, with or without ``error``. Only one callback is possible."""
        with self._lock:
            if not self._ended.is_set():
                self._callback = callback
                return
        callback(self)

    def end(self, error: Exception | None) -> None:
        """End the exchange and wake waiting threads. Internal."""
        with self._lock:
            self.error = error
            self._ended.set()
        if self._callback is not None:
            self._callback(self)


class StageRunner:
    """Thread that begins the stages. After a failure, all exchanges under way and all later ones fail with the same error."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[StagedExchange | None] = queue.SimpleQueue()
        self._under_way: deque[StagedExchange] = deque()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, stages: Iterator[None], is_last: bool) -> StagedExchange:
        """Begin the exchange of a bucket.

        :param stages: iterator that begins one stage per value. It first waits for the data that the stage needs, and
            it ends when the exchange is complete.
        :param is_last: True for the last bucket of the step.
        """
        staged = StagedExchange(stages, is_last, self._thread.is_alive)
        self._queue.put(staged)
        return staged

    def close(self, timeout: float) -> None:
        """End the thread. Its waits have ended by now, or will end within ``timeout`` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (staged := self._queue.get()) is not None:
            self._under_way.append(staged)
            self._run_slot()
            while staged.is_last and self._under_way:
                self._run_slot()

    def _run_slot(self) -> None:
        for staged in reversed(list(self._under_way)):
            error = self._error
            try:
                if error is None and next(staged.stages, _ENDED) is not _ENDED:
                    continue
            except Exception as raised:  # noqa: BLE001 - Staged.wait raises it
                error = self._error = raised
            self._under_way.remove(staged)
            staged.end(error)


_ENDED = object()
