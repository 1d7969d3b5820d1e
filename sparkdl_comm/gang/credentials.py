"""Credentials of a rank: the gang's secret, its attempt, and the rank's number.

A process that a rank has started, such as an aggregator of strategy ``fabric``, receives the rank's credentials over a
pipe. It can then use the services of other ranks like the rank itself.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.acceptor import MAX_HELLO
from sparkdl_comm.gang.frames import Clock
from sparkdl_comm.gang.handshake import Address


@dataclass(frozen=True)
class Credentials:
    """Identity of a rank towards its peers.

    :param attempt: identifier of the gang's attempt.
    :param secret: the gang's secret, 32 bytes.
    """

    rank: int
    attempt: str
    secret: bytes = field(repr=False)

    def dial(
        self, address: Address, kind: str, deadline: float, bind_ip: str | None = None, clock: Clock = time.monotonic
    ) -> socket.socket:
        """Return an authenticated, non-blocking connection to the service ``kind`` at ``address``.

        :param bind_ip: local address to connect from, that of a NIC. None: the system chooses.
        :raises ConnectionError: the peer disconnects before it has received the hello.

        It also raises the errors of :func:`~sparkdl_comm.gang.handshake.connect`.
        """
        sock = handshake.connect(address, self.secret, deadline, bind_ip, clock)
        hello = {"kind": kind, "rank": self.rank, "attempt": self.attempt}
        try:
            frames.send_frame(sock, hello, MAX_HELLO, deadline, clock)
        except BaseException:
            sock.close()
            raise
        return sock
