"""Exchanges in several stages. Many are under way at once, and all ranks begin their stages in the same order.

Connections match the collectives of different ranks by their order. So the order must not depend on which exchange
finishes first. In slot t, for t = 0, 1, ..., bucket t begins its stage 0, then bucket t - 1 its stage 1, and so on. A
slot begins when its bucket is given. After a step's last bucket, a slot begins when the previous slot has ended.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.errors import GangError


class _StagedBucket(NamedTuple):
    """Bucket given to :class:`StageRunner`, with the fields of its ``start``."""

    stages: Iterator[None]
    is_last: bool
    work: Work[None]


class StageRunner:
    """Thread that begins the stages. After a failure, all exchanges under way and all later ones fail with the same error."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[_StagedBucket | None] = queue.SimpleQueue()
        self._under_way: deque[_StagedBucket] = deque()
        self._error: Exception | None = None
        #: Guards :attr:`_is_closed`: no bucket enters the queue of a thread that has ended.
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, stages: Iterator[None], is_last: bool) -> Work[None]:
        """Begin the exchange of a bucket.

        :param stages: iterator that begins one stage per value. It first waits for the data that the stage needs, and
            it ends when the exchange is complete.
        :param is_last: True for the last bucket of the step.
        """
        work: Work[None] = Work("the exchange of a bucket")
        with self._closing:
            if not self._is_closed:
                self._queue.put(_StagedBucket(stages, is_last, work))
                return work
        work.set_error(self._error or _closed())
        return work

    def close(self, timeout: float) -> None:
        """End the thread. Its waits have ended by now, or will end within ``timeout`` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (bucket := self._queue.get()) is not None:
                self._under_way.append(bucket)
                self._run_slot()
                while bucket.is_last and self._under_way:
                    self._run_slot()
        finally:
            with self._closing:
                self._is_closed = True
            while not self._queue.empty():
                if (bucket := self._queue.get()) is not None:
                    self._under_way.append(bucket)
            for bucket in self._under_way:
                bucket.work.set_error(self._error or _closed())

    def _run_slot(self) -> None:
        for bucket in reversed(list(self._under_way)):
            error = self._error
            try:
                if error is None and next(bucket.stages, _ENDED) is not _ENDED:
                    continue
            except Exception as raised:  # noqa: BLE001 - a wait for the bucket raises it
                error = self._error = raised
            self._under_way.remove(bucket)
            if error is None:
                bucket.work.set_result(None)
            else:
                bucket.work.set_error(error)


def _closed() -> GangError:
    return GangError("the exchange was closed while a bucket was under way")


_ENDED = object()
