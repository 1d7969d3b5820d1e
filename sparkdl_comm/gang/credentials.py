"""What a process shows to be taken for a rank of a gang: the gang's secret, its attempt, and the number of the rank.

A process that a rank has started, such as an aggregator of strategy ``fabric``, gets the rank's over a pipe, and then reaches
the services of other ranks as the rank itself does.
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
    """``rank`` of the gang's ``attempt``, who knows its ``secret`` (32 bytes)."""

    rank: int
    attempt: str
    secret: bytes = field(repr=False)

    def dial(
        self, address: Address, kind: str, deadline: float, bind_ip: str | None = None, clock: Clock = time.monotonic
    ) -> socket.socket:
        """An authenticated, non-blocking connection to who listens at ``address``, for its service ``kind``; from the NIC with
        the address ``bind_ip`` if given.

        :raises ConnectionError: the peer goes away before it has heard for what we come.

        Its other errors are those of :func:`~sparkdl_comm.gang.handshake.connect`.
        """
        sock = handshake.connect(address, self.secret, deadline, bind_ip, clock)
        hello = {"kind": kind, "rank": self.rank, "epoch": self.attempt}  # the wire's word for an attempt
        try:
            frames.send_frame(sock, hello, MAX_HELLO, deadline, clock)
        except BaseException:
            sock.close()
            raise
        return sock
