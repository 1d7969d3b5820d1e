"""Connection between a daemon and the scheduler over the control NIC."""

from __future__ import annotations

import socket
import threading
import time

from sparkdl_comm.fabric.codec import decode, encode
from sparkdl_comm.fabric.protocol import Message
from sparkdl_comm.gang.frames import Clock, hang_up, recv_frame, send_frame

#: Largest message in bytes.
MAX_FRAME_BYTES = 4 << 20


class ControlLink:
    """Message channel over an authenticated connection. It owns the socket.

    Any thread may send. Only one thread receives.

    :param timeout_seconds: seconds that sending one message may take.
    """

    def __init__(self, sock: socket.socket, timeout_seconds: float, clock: Clock = time.monotonic) -> None:
        self.sock = sock
        self._timeout_seconds, self._clock = timeout_seconds, clock
        self._send_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message.

        :raises ConnectionError: the peer has closed the connection.
        :raises DeadlineError: the peer does not read the message in time.
        """
        with self._send_lock:
            send_frame(self.sock, encode(message), MAX_FRAME_BYTES, self._clock() + self._timeout_seconds, self._clock)

    def receive(self, timeout_seconds: float) -> Message:
        """Return the next message, waiting up to ``timeout_seconds``.

        :raises ConnectionError: the peer has closed the connection.
        :raises DeadlineError: no message arrives in time.
        :raises ProtocolError: the received frame is not a fabric message.
        """
        return decode(recv_frame(self.sock, MAX_FRAME_BYTES, self._clock() + timeout_seconds, self._clock))

    def hang_up(self) -> None:
        """Shut the connection down. The receiving thread gets a ConnectionError and has to close the socket."""
        hang_up(self.sock)
