"""Work that other threads post to a thread that waits in a selector."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable


class PostedWork:
    """Queue of functions for one thread, and a pair of sockets that wakes this thread from its selector.

    The thread registers :attr:`wake`. When it is readable, the thread calls :meth:`drain`, and then :meth:`run`.
    """

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._wake_sender, self.wake = socket.socketpair()
        self._wake_sender.setblocking(False)
        self.wake.setblocking(False)

    def post(self, work: Callable[[], None]) -> None:
        """Queue ``work`` and wake the thread. May be called from any thread."""
        self._work.append(work)
        with contextlib.suppress(OSError):  # full: the thread will wake anyway. Closed: the thread does no more work.
            self._wake_sender.send(b"x")

    def drain(self) -> None:
        """Read the bytes that woke the thread."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)

    def run(self) -> None:
        """Run all queued functions, including those queued meanwhile."""
        while self._work:
            self._work.popleft()()

    def sockets(self) -> list[socket.socket]:
        """Return both sockets, for a forked child to close."""
        return [self._wake_sender, self.wake]

    def close(self) -> None:
        """Close the sockets. Functions posted from now on run only if :meth:`run` is called."""
        for sock in self.sockets():
            sock.close()
