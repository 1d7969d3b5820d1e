"""Exchanges of several stages that are under way at once, begun in one order on all ranks.

The ranks' connections pair what they start by its order, so that must not depend on what is complete first. In slot t, for
t = 0, 1, ..., bucket t begins its stage 0, then bucket t - 1 its stage 1, and so on. A slot begins when its bucket is given,
or, after a step's last bucket, when the one before has ended.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator

from sparkdl_comm.errors import GangError

#: Seconds after which who waits looks whether the thread is still there. What the thread waits for has deadlines of its own.
_LOOK = 1.0


class Staged:
    """An exchange that was given to :class:`Stages`."""

    def __init__(self, stages: Iterator[None], last: bool, is_alive: Callable[[], bool]) -> None:
        """Not to be called directly."""
        self.stages, self.last = stages, last
        self.error: Exception | None = None
        self._is_alive = is_alive
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._callback: Callable[[Staged], object] | None = None

    def wait(self) -> None:
        """Returns when it is complete here; raises why it failed."""
        while not self._over.wait(_LOOK):
            if not self._is_alive() and not self._over.is_set():
                raise GangError("the exchange was closed while a bucket was under way")
        if self.error is not None:
            raise self.error

    @property
    def is_over(self) -> bool:
        """Whether it has ended here, well or not."""
        return self._over.is_set()

    def then(self, callback: Callable[[Staged], object]) -> None:
        """Has ``callback`` called once when it has ended, well or not (``error``). For one callback."""
        with self._lock:
            if not self._over.is_set():
                self._callback = callback
                return
        callback(self)

    def end(self, error: Exception | None) -> None:
        """Not to be called directly."""
        with self._lock:
            self.error = error
            self._over.set()
        if self._callback is not None:
            self._callback(self)


class Stages:
    """The thread that begins the stages. After a failure, what is under way and what comes later fails in the same way."""

    def __init__(self, name: str) -> None:
        self._given: queue.SimpleQueue[Staged | None] = queue.SimpleQueue()
        self._under_way: deque[Staged] = deque()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, stages: Iterator[None], last: bool) -> Staged:
        """Begins the exchange of a bucket.

        :param stages: begins a stage whenever it is asked for the next value, after what the stage needs is there, and ends
            when the exchange is complete.
        :param last: bucket of the step.
        """
        staged = Staged(stages, last, self._thread.is_alive)
        self._given.put(staged)
        return staged

    def close(self, timeout: float) -> None:
        """Ends the thread, whose waits have ended by now or will within ``timeout`` seconds."""
        self._given.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (staged := self._given.get()) is not None:
            self._under_way.append(staged)
            self._slot()
            while staged.last and self._under_way:
                self._slot()

    def _slot(self) -> None:
        for staged in reversed(list(self._under_way)):
            error = self._error
            try:
                if error is None and next(staged.stages, _ENDED) is not _ENDED:
                    continue
            except Exception as raised:  # noqa: BLE001 - who waits for it raises it
                error = self._error = raised
            self._under_way.remove(staged)
            staged.end(error)


_ENDED = object()
