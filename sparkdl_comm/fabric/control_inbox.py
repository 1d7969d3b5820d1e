"""Inbox of the scheduler: one thread per daemon connection puts its messages into one queue."""

from __future__ import annotations

import logging
import queue
import socket
import time
from dataclasses import dataclass

from sparkdl_comm.errors import DeadlineError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.control_link import ControlLink
from sparkdl_comm.fabric.core.nodes import Node
from sparkdl_comm.fabric.protocol import Leave, Message, Register
from sparkdl_comm.gang.frames import Clock

#: Timeout in seconds of one wait for a daemon's message. The wait is then repeated.
_IDLE_SECONDS = 3600.0

_log = logging.getLogger(__name__)


@dataclass
class Peer:
    """Control connection of a daemon. ``node``: None until all nodes have registered."""

    register: Register
    link: ControlLink
    node: Node | None = None

    def send(self, message: Message) -> None:
        """Send a message to the daemon. If the daemon does not take it, end the connection: the daemon is lost."""
        try:
            self.link.send(message)
        except OSError as exc:
            _log.info("cannot send to rank %d, %s: %s", self.register.rank, self.register.role, exc)
            self.link.hang_up()


class ControlInbox:
    """Queue of the daemons' messages. ``timeout``: seconds that a daemon may take to send one message."""

    def __init__(self, timeout: float, clock: Clock = time.monotonic) -> None:
        self._timeout, self._clock = timeout, clock
        self._messages: queue.SimpleQueue[tuple[Peer, Message | None]] = queue.SimpleQueue()

    def next_message(self, seconds: float) -> tuple[Peer, Message | None] | None:
        """Return a daemon and its next message, or None if nothing arrives for so many seconds.

        A daemon's first message is :class:`Register`. The message is None when the daemon's connection has ended.
        """
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            return None

    def serve(self, sock: socket.socket, rank: int) -> None:
        """Receive from a daemon of ``rank`` until it leaves. Takes ownership of the authenticated connection."""
        link = ControlLink(sock, self._timeout, self._clock)
        try:
            register = link.receive(self._timeout)
            if not isinstance(register, Register) or register.rank != rank:
                raise ProtocolError(
                    f"rank {rank} did not register itself with the fabric first, but sent {type(register).__name__}"
                )
            peer = Peer(register, link)
            self._messages.put((peer, register))
            self._listen(peer)
        finally:
            sock.close()

    def _listen(self, peer: Peer) -> None:
        while True:
            try:
                message = peer.link.receive(_IDLE_SECONDS)
            except DeadlineError:
                continue
            except (OSError, SparkdlCommError) as exc:
                _log.info("control connection of rank %d, %s, ended: %s", peer.register.rank, peer.register.role, exc)
                self._messages.put((peer, None))
                return
            self._messages.put((peer, message))
            if isinstance(message, Leave):
                return
