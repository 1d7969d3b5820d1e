"""What daemons say to the scheduler: a thread for each connection puts it into one queue."""

from __future__ import annotations

import logging
import queue
import socket
import time
from dataclasses import dataclass

from sparkdl_comm.errors import DeadlineError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.control_link import ControlLink
from sparkdl_comm.fabric.core.roles import Node
from sparkdl_comm.fabric.protocol import Leave, Message, Register
from sparkdl_comm.gang.frames import Clock

#: Seconds for which a daemon may have nothing to say before its connection is looked at again.
_IDLE = 3600.0

_log = logging.getLogger(__name__)


@dataclass
class Peer:
    """A daemon's connection. ``node``: None until all are there."""

    register: Register
    link: ControlLink
    node: Node | None = None

    def tell(self, message: Message) -> None:
        """Says it to the daemon. One that does not take it is lost: its connection ends."""
        try:
            self.link.send(message)
        except OSError as exc:
            _log.info("rank %d, %s, hears no more: %s", self.register.rank, self.register.role, exc)
            self.link.hang_up()


class Reception:
    """``timeout``: seconds that a daemon may take for a message, once it has begun."""

    def __init__(self, timeout: float, clock: Clock = time.monotonic) -> None:
        self._timeout, self._clock = timeout, clock
        self._heard: queue.SimpleQueue[tuple[Peer, Message | None]] = queue.SimpleQueue()

    def hear(self, seconds: float) -> tuple[Peer, Message | None] | None:
        """What a daemon said, :class:`Register` first; None in place of a message when its connection has ended. None if
        there is nothing for so many seconds."""
        try:
            return self._heard.get(timeout=seconds)
        except queue.Empty:
            return None

    def serve(self, sock: socket.socket, rank: int) -> None:
        """Listens to a daemon of ``rank`` until it leaves; owns the authenticated connection."""
        link = ControlLink(sock, self._timeout, self._clock)
        try:
            register = link.receive(self._timeout)
            if not isinstance(register, Register) or register.rank != rank:
                raise ProtocolError(f"rank {rank} did not register with the fabric, but said {type(register).__name__}")
            peer = Peer(register, link)
            self._heard.put((peer, register))
            self._listen(peer)
        finally:
            sock.close()

    def _listen(self, peer: Peer) -> None:
        while True:
            try:
                message = peer.link.receive(_IDLE)
            except DeadlineError:
                continue
            except (OSError, SparkdlCommError) as exc:
                _log.info("the connection of rank %d, %s, ended: %s", peer.register.rank, peer.register.role, exc)
                self._heard.put((peer, None))
                return
            self._heard.put((peer, message))
            if isinstance(message, Leave):
                return
