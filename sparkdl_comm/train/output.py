"""The last lines that a rank printed, for its exception.

Standard output and error of the process go through a pipe as long as a rank runs, whoever writes to them: Python, logging,
NCCL, a child process. A thread keeps the last lines and passes everything on to standard error, which Spark writes to the
executor's log, as it does with the standard output of Python workers anyway.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections import deque

LINES = 100
_MAX_LINE = 1000
_STDOUT, _STDERR = 1, 2


class OutputTail:
    """Takes the process's output from now until :meth:`close`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = b""  # of a line that has not ended
        self._lock = threading.Lock()
        self._closing = False
        _flush()
        self._saved = {fd: os.dup(fd) for fd in (_STDOUT, _STDERR)}
        self._reads, writes = os.pipe()
        os.set_blocking(self._reads, False)
        self._wake_out, self._wake_in = os.pipe()
        for fd in self._saved:
            os.dup2(writes, fd)
        os.close(writes)
        self._thread = threading.Thread(target=self._run, name="sparkdl-output", daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """The last 100 lines up to now, each of at most 1000 characters."""
        _flush()
        self._drain()
        with self._lock:
            lines = [*self._lines, _text(self._rest)] if self._rest else list(self._lines)
        return "\n".join(lines[-LINES:])

    def close(self) -> None:
        """Give standard output and error back. May be repeated."""
        if self._closing:
            return
        _flush()
        for fd, saved in self._saved.items():
            os.dup2(saved, fd)
        self._closing = True
        os.close(self._wake_in)  # the thread's end becomes readable
        self._thread.join()
        self._drain()
        for fd in (self._reads, self._wake_out, *self._saved.values()):
            os.close(fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while not self._closing:
            poll.poll()
            self._drain()

    def _drain(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            while data := os.read(self._reads, 1 << 16):
                view = memoryview(data)
                while view:
                    view = view[os.write(self._saved[_STDERR], view) :]
                *lines, rest = (self._rest + data).split(b"\n")
                self._lines.extend(map(_text, lines))
                self._rest = rest[-_MAX_LINE:]


def _text(line: bytes) -> str:
    return line.decode(errors="backslashreplace")[-_MAX_LINE:]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as in a process without a terminal
            stream.flush()
