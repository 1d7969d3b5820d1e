"""The connection between a daemon and the scheduler, on the control NIC."""

from __future__ import annotations

import socket
import threading
import time

from sparkdl_comm.fabric.codec import decode, encode
from sparkdl_comm.fabric.protocol import Message
from sparkdl_comm.gang.frames import Clock, hang_up, recv_frame, send_frame

#: Bytes of a message.
MAX_FRAME = 4 << 20


class ControlLink:
    """Messages over an authenticated connection; any thread may send, one receives. It owns the socket.

    ``patience``: seconds that a message may take.
    """

    def __init__(self, sock: socket.socket, patience: float, clock: Clock = time.monotonic) -> None:
        self.sock = sock
        self._patience, self._clock = patience, clock
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends it.

        :raises ConnectionError: the peer is gone.
        :raises DeadlineError: it does not take it in time.
        """
        with self._sending:
            send_frame(self.sock, encode(message), MAX_FRAME, self._clock() + self._patience, self._clock)

    def receive(self, seconds: float) -> Message:
        """The next message.

        :raises ConnectionError: the peer is gone.
        :raises DeadlineError: nothing comes in time.
        :raises ProtocolError: what comes is no message.
        """
        return decode(recv_frame(self.sock, MAX_FRAME, self._clock() + seconds, self._clock))

    def hang_up(self) -> None:
        """Ends it: the thread that receives gets a ConnectionError, and is to close the socket."""
        hang_up(self.sock)
