"""Operations in flight: collectives, exchanges of buckets, and updates on their way to a server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.frames import TIMEOUT_KEY

T = TypeVar("T")
U = TypeVar("U")


class Work(Generic[T]):
    """Operation that one rank has started, like torch.distributed's Work. Do not touch its tensors until it has ended.

    Any thread may call the methods. The operation's own thread calls :meth:`set_result` or :meth:`set_error` once.

    :param name: name of the operation, for messages.
    :param timeout: seconds of a :meth:`wait` without a time limit of its own; None if the operation ends in time by itself.
    """

    #: Phase that a missed deadline reports.
    phase: str | None = None

    def __init__(self, name: str, timeout: float | None = None) -> None:
        self.name, self._timeout = name, timeout
        self._result: Any = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._callback: Callable[[Work[T]], object] | None = None

    @property
    def is_over(self) -> bool:
        """True if the operation has ended here, with or without an error."""
        return self._ended.is_set()

    @property
    def error(self) -> Exception | None:
        """Reason why the operation failed; None if it succeeded or has not ended."""
        return self._error

    def wait(self, timeout: float | None = None) -> T:
        """Wait until the operation is complete here, and return its result.

        :param timeout: seconds; None to wait as long as the operation may take.
        :raises DeadlineError: the operation is not complete by then.
        :raises Exception: :attr:`error`, if the operation failed.
        """
        seconds = self._timeout if timeout is None else timeout
        if not self._ended.wait(seconds):
            raise DeadlineError(f"{self.name} is not complete after {seconds:g} s; set {TIMEOUT_KEY}", phase=self.phase)
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def then(self, callback: Callable[[Work[T]], object]) -> None:
        """Call ``callback`` once when the operation has ended, with or without an :attr:`error`.

        The operation's thread calls it, so it must be quick. If the operation has already ended, the calling thread calls
        it immediately. Only one callback is possible.
        """
        with self._lock:
            if not self._ended.is_set():
                self._callback = callback
                return
        callback(self)

    def cancel(self) -> None:
        """End the operation with an error, unless it has ended. Most operations cannot be cancelled and just go on."""

    def map(
        self,
        function: Callable[[T], U],
        *,
        timeout: float | None = None,
        guard: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> Work[U]:
        """Return the Work that ends with this one, and whose :meth:`wait` returns ``function`` of this one's result.

        :param function: function that each waiting thread calls.
        :param timeout: seconds, as in the constructor; None: that of this Work.
        :param guard: context of each wait, which may replace errors.
        """
        return _MappedWork(self, function, self._timeout if timeout is None else timeout, guard)

    def set_result(self, result: T) -> None:
        """End the operation successfully, and wake the threads that wait for it."""
        self._result = result
        self._end()

    def set_error(self, error: Exception) -> None:
        """End the operation with ``error``, and wake the threads that wait for it."""
        self._error = error
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._ended.set()
        if self._callback is not None:
            self._callback(self)


class _MappedWork(Work[U]):
    """Result of :meth:`Work.map`."""

    def __init__(
        self,
        source: Work[Any],
        function: Callable[[Any], U],
        timeout: float | None,
        guard: Callable[[], contextlib.AbstractContextManager[object]],
    ) -> None:
        super().__init__(source.name, timeout)
        self._source, self._function, self._guard = source, function, guard

    @property
    def is_over(self) -> bool:
        return self._source.is_over

    @property
    def error(self) -> Exception | None:
        return self._source.error

    def wait(self, timeout: float | None = None) -> U:
        with self._guard():
            return self._function(self._source.wait(self._timeout if timeout is None else timeout))

    def then(self, callback: Callable[[Work[U]], object]) -> None:
        self._source.then(lambda _: callback(self))

    def cancel(self) -> None:
        self._source.cancel()
