"""What a rank prints: its last lines for its exception, and, at rank 0, lines for the driver as they come.

Standard output and error of the process go to a file in memory as long as a rank runs, whoever writes to them: Python,
logging, NCCL, a child process. A thread takes from it, keeps the last lines and passes everything on to standard error, which
Spark writes to the executor's log, as it does with the standard output of Python workers anyway. It is a file and no pipe
because that thread needs the interpreter: native code that printed more than a pipe takes, without letting go of the
interpreter, would wait for ever.

The driver gets at most 100 lines at a time, a few times a second, whatever a rank prints: of more, the last.
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
#: Seconds between two sendings of lines, and between two looks at what was written.
_SEND_EVERY, _LOOK_EVERY = 0.25, 0.05
_READ_BYTES = 1 << 16
#: Memory is given back in pieces of this size.
_PIECE_BYTES = 1 << 20
#: What has been written and not been passed on may take this much memory; of more, the oldest is left out.
MAX_BEHIND = 256 << 20
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

    def due(self) -> bool:
        return bool(self._waiting) and time.monotonic() >= self._due

    def send(self) -> None:
        self._due = time.monotonic() + _SEND_EVERY
        if self._waiting and self._send(list(self._waiting), self._dropped):
            self._waiting.clear()
            self._dropped = 0


class _Spool:
    """A file in memory that others append to, and that one thread at a time takes from."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("sparkdl-output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)
        self._at = self._freed = 0

    def end(self) -> int:
        """Up to where it has been written now."""
        return os.fstat(self.fd).st_size

    def take(self, end: int) -> tuple[bytes, int]:
        """The next bytes, before ``end``, and how many bytes before them were left out; no bytes: these were all."""
        size, skipped = self.end(), 0
        if size < self._at:  # somebody has opened it anew and cut it off, as a shell does for `> /dev/stderr`
            self._at = self._freed = 0
        if size - self._at > MAX_BEHIND:
            skipped = size - self._at - MAX_BEHIND // 2
            self._at += skipped
        data = os.pread(self.fd, min(_READ_BYTES, max(0, end - self._at)), self._at)
        self._at += len(data)
        self._free()
        return data, skipped

    def close(self) -> None:
        """A child process that still writes gets an error from now on, as from a pipe that nobody reads."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        os.close(self.fd)

    def _free(self) -> None:
        size = (self._at - self._freed) // _PIECE_BYTES * _PIECE_BYTES
        if size:
            with contextlib.suppress(ValueError), mmap.mmap(self.fd, size, offset=self._freed) as done:
                done.madvise(mmap.MADV_REMOVE)  # ValueError: cut off just now
            self._freed += size


class OutputTail:
    """Takes the process's output from now until :meth:`close`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = b""  # of a line that has not ended
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
        """The last 100 lines up to now, each of at most 1000 characters."""
        _flush()
        self._drain()
        with self._lock:
            lines = [*self._lines, _text(self._rest)] if self._rest else list(self._lines)
        return "\n".join(lines[-LINES:])

    def forward(self, send: Send) -> None:
        """Give ``send`` the last lines up to now, and all that come until :meth:`end_forward`, from a thread of its own."""
        with self._lock:
            self._forward = _Forward(send, list(self._lines))

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
        """Take what has been written by now, and not what is written meanwhile: somebody may never stop."""
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
        if stream is not None:  # as in a process without a terminal
            stream.flush()
