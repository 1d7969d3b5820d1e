"""Capture of a rank's output: its last lines for error messages, and rank 0's lines for the driver while it runs.

While a rank runs, standard output and error of its process are a file in memory. It catches the output of Python,
logging, NCCL and child processes. A thread reads the file, keeps the last lines and copies everything to standard
error, which Spark writes to the executor's log. Spark does the same with the standard output of Python workers anyway.

The capture is a file, not a pipe, because the reading thread needs the interpreter lock. Native code that prints while
it holds the lock would block forever on a full pipe.

The driver receives at most 100 lines at a time, a few times a second. If a rank prints more, these are the last ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

LINES = 100
_MAX_LINE = 1000
#: Seconds between two messages to the driver, and between two reads of the file.
_SEND_EVERY, _LOOK_EVERY = 0.25, 0.05
_READ_BYTES = 1 << 16
#: Unit in which read memory is released, in bytes.
_PIECE_BYTES = 1 << 20
#: Limit of output that has not been read, in bytes. Beyond it, the oldest output is dropped.
MAX_BEHIND = 256 << 20
_STDOUT, _STDERR = 1, 2

#: Callback for lines and the number of lines dropped before them. Does not wait; returns False if it cannot send now.
Send = Callable[[list[str], int], bool]


class _Forward:
    """Buffer of the last lines to send, and the number of lines dropped before them."""

    def __init__(self, send: Send, lines: list[str]) -> None:
        self._send = send
        self._waiting: deque[str] = deque(maxlen=LINES)
        self._dropped = 0
        self._due = 0.0
        self.add(lines)

    def add(self, lines: list[str], dropped: int = 0) -> None:
        """Add ``lines``. ``dropped``: number of lines before them that are lost already."""
        self._dropped += dropped + max(0, len(self._waiting) + len(lines) - LINES)
        self._waiting.extend(lines)

    def due(self) -> bool:
        return bool(self._waiting) and time.monotonic() >= self._due

    def send(self) -> None:
        self._due = time.monotonic() + _SEND_EVERY
        if self._waiting and self._send(list(self._waiting), self._dropped):
            self._waiting.clear()
            self._dropped = 0


class _Spool:
    """File in memory to which others append, and from which one thread at a time reads."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("sparkdl-output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)
        self._at = self._freed = 0

    def end(self) -> int:
        """Return the current end of the file, in bytes."""
        return os.fstat(self.fd).st_size

    def take(self, end: int) -> tuple[bytes, int]:
        """Return the next bytes before ``end``, and how many bytes before them were dropped. No bytes: all have been
        read.
        """
        size, skipped = self.end(), 0
        if size < self._at:  # truncated by another opener, such as a shell's `> /dev/stderr`
            self._at = self._freed = 0
        if size - self._at > MAX_BEHIND:
            skipped = size - self._at - MAX_BEHIND // 2
            self._at += skipped
        data = os.pread(self.fd, min(_READ_BYTES, max(0, end - self._at)), self._at)
        self._at += len(data)
        self._free()
        return data, skipped

    def close(self) -> None:
        """Close the file. A child process that still writes gets an error, like from a pipe without a reader."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        os.close(self.fd)

    def _free(self) -> None:
        size = (self._at - self._freed) // _PIECE_BYTES * _PIECE_BYTES
        if size:
            with contextlib.suppress(ValueError), mmap.mmap(self.fd, size, offset=self._freed) as done:
                done.madvise(mmap.MADV_REMOVE)  # ValueError: truncated meanwhile
            self._freed += size


class OutputTail:
    """Capture of the process's output from construction until :meth:`close`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = b""  # start of a line that has not ended
        self._forward: _Forward | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        _flush()
        self._saved = {fd: os.dup(fd) for fd in (_STDOUT, _STDERR)}
        self._spool = _Spool()
        for fd in self._saved:
            os.dup2(self._spool.fd, fd)
        self._thread = threading.Thread(target=self._run, name="sparkdl-output", daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """Return the last 100 lines printed so far, each cut to its last 1000 characters."""
        _flush()
        self._drain()
        with self._lock:
            lines = [*self._lines, _text(self._rest)] if self._rest else list(self._lines)
        return "\n".join(lines[-LINES:])

    def forward(self, send: Send) -> None:
        """Pass the last lines so far, and all later ones until :meth:`end_forward`, to ``send``, which a separate
        thread calls.
        """
        with self._lock:
            self._forward = _Forward(send, list(self._lines))

    def end_forward(self) -> None:
        """Send the lines printed so far, and stop forwarding."""
        _flush()
        self._drain()
        with self._lock:
            if self._forward is not None:
                self._forward.add([_text(self._rest)] if self._rest else [])
                self._forward.send()
                self._forward = None

    def close(self) -> None:
        """Restore standard output and error. May be called more than once."""
        if self._closing.is_set():
            return
        _flush()
        for fd, saved in self._saved.items():
            os.dup2(saved, fd)
        self._closing.set()
        self._thread.join()
        self._drain()
        self._spool.close()
        for fd in self._saved.values():
            os.close(fd)

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_EVERY):
            self._drain()
            with self._lock:
                if self._forward is not None and self._forward.due():
                    self._forward.send()

    def _drain(self) -> None:
        """Read what has been written so far, not what is written meanwhile, because a writer may never stop."""
        end = self._spool.end()
        while True:
            with self._lock:
                data, skipped = self._spool.take(end)
                if skipped:
                    self._take(b"\n[%d bytes of output left out here]\n" % skipped)
                self._take(data)
            if not data:
                return

    def _take(self, data: bytes) -> None:
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
        if stream is not None:  # None in a process without a terminal
            stream.flush()
