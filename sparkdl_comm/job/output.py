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

MAX_LINES = 100
_MAX_LINE_CHARACTERS = 1000
#: Seconds between two messages to the driver, and between two reads of the file.
_SEND_INTERVAL_SECONDS, _READ_INTERVAL_SECONDS = 0.25, 0.05
_CHUNK_BYTES = 1 << 16
#: Unit in which read memory is released, in bytes.
_PIECE_BYTES = 1 << 20
#: Limit of output that has not been read, in bytes. Beyond it, the oldest output is dropped.
MAX_UNREAD_BYTES = 256 << 20
_STDOUT, _STDERR = 1, 2

#: Callback for lines and the number of lines dropped before them. Does not wait; returns False if it cannot send now.
Send = Callable[[list[str], int], bool]


class _LineBuffer:
    """Buffer of the last lines to send, and the number of lines dropped before them."""

    def __init__(self, send: Send, lines: list[str]) -> None:
        self._send = send
        self._buffered: deque[str] = deque(maxlen=MAX_LINES)
        self._dropped = 0
        self._due_at = 0.0
        self.add(lines)

    def add(self, lines: list[str], dropped: int = 0) -> None:
        """Add ``lines``. ``dropped``: number of lines before them that are lost already."""
        self._dropped += dropped + max(0, len(self._buffered) + len(lines) - MAX_LINES)
        self._buffered.extend(lines)

    def is_due(self) -> bool:
        return bool(self._buffered) and time.monotonic() >= self._due_at

    def send(self) -> None:
        self._due_at = time.monotonic() + _SEND_INTERVAL_SECONDS
        if self._buffered and self._send(list(self._buffered), self._dropped):
            self._buffered.clear()
            self._dropped = 0


class _Spool:
    """File in memory to which others append, and from which one thread at a time reads."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("sparkdl-output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)
        self._read_bytes = self._freed_bytes = 0

    def end(self) -> int:
        """Return the current end of the file, in bytes."""
        return os.fstat(self.fd).st_size

    def read(self, end: int) -> tuple[bytes, int]:
        """Return the next bytes before ``end``, and how many bytes before them were dropped. No bytes: all have been
        read.
        """
        size, skipped_bytes = self.end(), 0
        if size < self._read_bytes:  # truncated by another opener, such as a shell's `> /dev/stderr`
            self._read_bytes = self._freed_bytes = 0
        if size - self._read_bytes > MAX_UNREAD_BYTES:
            skipped_bytes = size - self._read_bytes - MAX_UNREAD_BYTES // 2
            self._read_bytes += skipped_bytes
        data = os.pread(self.fd, min(_CHUNK_BYTES, max(0, end - self._read_bytes)), self._read_bytes)
        self._read_bytes += len(data)
        self._free()
        return data, skipped_bytes

    def close(self) -> None:
        """Close the file. A child process that still writes gets an error, like from a pipe without a reader."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        os.close(self.fd)

    def _free(self) -> None:
        size = (self._read_bytes - self._freed_bytes) // _PIECE_BYTES * _PIECE_BYTES
        if size:
            with contextlib.suppress(ValueError), mmap.mmap(self.fd, size, offset=self._freed_bytes) as freed:
                freed.madvise(mmap.MADV_REMOVE)  # ValueError: truncated meanwhile
            self._freed_bytes += size


class OutputCapture:
    """Capture of the process's output from construction until :meth:`close`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._partial_line = b""  # start of a line that has not ended
        self._forward: _LineBuffer | None = None
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
            lines = [*self._lines, _decode(self._partial_line)] if self._partial_line else list(self._lines)
        return "\n".join(lines[-MAX_LINES:])

    def forward(self, send: Send) -> None:
        """Pass the last lines so far, and all later ones until :meth:`end_forward`, to ``send``, which a separate
        thread calls.
        """
        with self._lock:
            self._forward = _LineBuffer(send, list(self._lines))

    def end_forward(self) -> None:
        """Send the lines printed so far, and stop forwarding."""
        _flush()
        self._drain()
        with self._lock:
            if self._forward is not None:
                self._forward.add([_decode(self._partial_line)] if self._partial_line else [])
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
        while not self._closing.wait(_READ_INTERVAL_SECONDS):
            self._drain()
            with self._lock:
                if self._forward is not None and self._forward.is_due():
                    self._forward.send()

    def _drain(self) -> None:
        """Read what has been written so far, not what is written meanwhile, because a writer may never stop."""
        end = self._spool.end()
        while True:
            with self._lock:
                data, skipped_bytes = self._spool.read(end)
                if skipped_bytes:
                    self._process(b"\n[%d bytes of output left out here]\n" % skipped_bytes)
                self._process(data)
            if not data:
                return

    def _process(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._saved[_STDERR], view) :]
        *ended, partial = (self._partial_line + data).split(b"\n")
        lines = list(map(_decode, ended[-MAX_LINES:]))
        self._lines.extend(lines)
        if self._forward is not None:
            self._forward.add(lines, len(ended) - len(lines))
        self._partial_line = partial[-_MAX_LINE_CHARACTERS:]


def _decode(line: bytes) -> str:
    return line.decode(errors="backslashreplace")[-_MAX_LINE_CHARACTERS:]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None in a process without a terminal
            stream.flush()
