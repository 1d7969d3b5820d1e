"""Work that other threads post to a thread that waits in a selector."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable


class PostedWork:
    """Functions in the order in which they were posted, and a pair of sockets that wakes the thread which runs them.

    That thread registers :attr:`wake`, calls :meth:`drain` when that is readable, and then :meth:`run`.
    """

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._post, self.wake = socket.socketpair()
        self._post.setblocking(False)
        self.wake.setblocking(False)

    def post(self, work: Callable[[], None]) -> None:
        """Has the thread run ``work`` soon. To be called from any thread."""
        self._work.append(work)
        with contextlib.suppress(OSError):  # full: it will wake anyway. Closed: it is past work.
            self._post.send(b"x")

    def drain(self) -> None:
        """Reads what woke the thread."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)

    def run(self) -> None:
        """Runs all that was posted, also meanwhile."""
        while self._work:
            self._work.popleft()()

    def sockets(self) -> list[socket.socket]:
        """Both, for a forked child to close."""
        return [self._post, self.wake]

    def close(self) -> None:
        """What is posted from now on runs only if :meth:`run` is called."""
        for sock in self.sockets():
            sock.close()
