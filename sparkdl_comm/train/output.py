"""What a rank prints: its last lines for its exception, and, at rank 0, lines for the driver as they come.

Standard output and error of the process go through a pipe as long as a rank runs, whoever writes to them: Python, logging,
NCCL, a child process. A thread keeps the last lines and passes everything on to standard error, which Spark writes to the
executor's log, as it does with the standard output of Python workers anyway.

The driver gets at most 100 lines at a time, a few times a second, whatever a rank prints: of more, the last.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

LINES = 100
_MAX_LINE = 1000
#: Seconds between two sendings of lines.
_SEND_EVERY = 0.25
#: A pipe holds as much as one read takes; several, as it may come in smaller pieces.
_PIPE_BYTES, _PIPE_READS = 1 << 16, 16
_STDOUT, _STDERR = 1, 2

#: Takes lines, and how many before them were dropped, without waiting; False: it cannot just now.
Send = Callable[[list[str], int], bool]


class _Forward:
    """Lines that wait for being sent: the last ones, and how many were dropped before them."""

    def __init__(self, send: Send, lines: list[str]) -> None:
        self._send = send
        self._waiting: deque[str] = deque(maxlen=LINES)
        self._dropped = 0
        self._due = 0.0
        self.add(lines)

    def add(self, lines: list[str], dropped: int = 0) -> None:
        """``dropped``: how many before ``lines`` there are no more."""
        self._dropped += dropped + max(0, len(self._waiting) + len(lines) - LINES)
        self._waiting.extend(lines)

    def wait(self) -> float | None:
        """Seconds until the next sending is due; None: there is nothing to send."""
        return max(0.0, self._due - time.monotonic()) if self._waiting else None

    def send(self) -> None:
        self._due = time.monotonic() + _SEND_EVERY
        if self._waiting and self._send(list(self._waiting), self._dropped):
            self._waiting.clear()
            self._dropped = 0


class OutputTail:
    """Takes the process's output from now until :meth:`close`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = b""  # of a line that has not ended
        self._forward: _Forward | None = None
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

    def forward(self, send: Send) -> None:
        """Give `send` the last lines up to now, and all that come until :meth:`end_forward`, from a thread of its own."""
        with self._lock:
            self._forward = _Forward(send, list(self._lines))
        self._wake()

    def end_forward(self) -> None:
        """Send what was printed up to now, and no more from then on."""
        _flush()
        self._drain()
        with self._lock:
            if self._forward is not None:
                self._forward.add([_text(self._rest)] if self._rest else [])
                self._forward.send()
                self._forward = None

    def close(self) -> None:
        """Give standard output and error back. May be repeated."""
        if self._closing:
            return
        _flush()
        for fd, saved in self._saved.items():
            os.dup2(saved, fd)
        self._closing = True
        self._wake()
        self._thread.join()
        self._drain()
        for fd in (self._reads, self._wake_in, self._wake_out, *self._saved.values()):
            os.close(fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while not self._closing:
            with self._lock:
                wait = self._forward.wait() if self._forward is not None else None
            for fd, _ in poll.poll(None if wait is None else math.ceil(wait * 1000)):
                if fd == self._wake_out:
                    os.read(fd, 1)
            self._drain()
            with self._lock:
                if self._forward is not None and self._forward.wait() == 0:
                    self._forward.send()

    def _wake(self) -> None:
        os.write(self._wake_in, b"\0")

    def _drain(self) -> None:
        """Take what is in the pipe now, and not what is written meanwhile: somebody may never stop."""
        with self._lock, contextlib.suppress(BlockingIOError):
            for _ in range(_PIPE_READS):
                data = os.read(self._reads, _PIPE_BYTES)
                if not data:
                    return
                view = memoryview(data)
                while view:
                    view = view[os.write(self._saved[_STDERR], view) :]
                *ended, rest = (self._rest + data).split(b"\n")
                lines = list(map(_text, ended[-LINES:]))
                self._lines.extend(lines)
                if self._forward is not None:
                    self._forward.add(lines, len(ended) - len(lines))
                self._rest = rest[-_MAX_LINE:]


def _text(line: bytes) -> str:
    return line.decode(errors="backslashreplace")[-_MAX_LINE:]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as in a process without a terminal
            stream.flush()
