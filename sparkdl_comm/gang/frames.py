"""Sending and receiving on authenticated sockets: bytes with a deadline, and frames, which are JSON objects.

A frame is the length and the CRC-32 of its body, 4 bytes each (big-endian), then the body: the object's JSON in UTF-8.
The receiver checks the length against its limit before it allocates memory.

Sockets are non-blocking and waited for with poll(2), never ``settimeout``: a timeout belongs to the socket, so a
reading and a writing thread would change each other's deadline. A deadline is a value of ``clock``, in seconds. It
covers a whole call: a peer that sends one byte now and then does not extend it.

Errors: DeadlineError. ConnectionError (the builtin one) if the peer disconnects; the caller adds which rank it was.
ProtocolError for a frame that is too long, damaged, or not a JSON object.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import select
import socket
import struct
import termios
import time
import zlib
from collections.abc import Callable
from typing import Any

from sparkdl_comm.errors import DeadlineError, InputError, ProtocolError

Clock = Callable[[], float]

TIMEOUT_KEY = "spark.sparkdl.comm.timeout"
#: Header of each frame: length and CRC-32 of its body.
_HEAD = struct.Struct("!II")


def await_ready(sock: socket.socket, event: int, deadline: float, clock: Clock, action: str) -> None:
    """Wait until poll(2) reports ``event`` on the socket.

    :param action: current action of the caller, for the error.
    :raises DeadlineError: the deadline passes first.
    """
    poll = select.poll()
    poll.register(sock, event)
    while True:
        remaining_seconds = deadline - clock()
        if remaining_seconds <= 0:
            raise DeadlineError(f"deadline passed while {action} (conf {TIMEOUT_KEY})")
        # At most a minute, so that a clock other than the kernel's is read again.
        if poll.poll(math.ceil(min(remaining_seconds, 60.0) * 1000)):
            return


def await_message(sock: socket.socket) -> None:
    """Wait for the first byte of the peer's next message, or for the end of the connection.

    Only this wait has no deadline: a peer may be idle for days, and its end ends the connection. Receive the message with
    a deadline, and give the connection up if that passes: the rest of a message would be read as the next one.
    """
    await_ready(sock, select.POLLIN, math.inf, time.monotonic, "idle")


def _connection_lost(exc: OSError) -> ConnectionError:
    # ETIMEDOUT and EHOSTUNREACH are not ConnectionErrors in Python, but mean the same here.
    return ConnectionAbortedError(exc.errno, f"connection lost: {exc.strerror or exc}")


def recv_into(sock: socket.socket, view: memoryview, deadline: float, clock: Clock = time.monotonic) -> None:
    """Fill ``view`` (bytes).

    :raises DeadlineError: not all bytes arrive in time.
    :raises ConnectionError: the peer closes first.
    """
    done = 0
    while done < len(view):
        # Checked before each read, so that a peer that always has one more byte ready cannot extend the deadline.
        if clock() >= deadline:
            raise DeadlineError(f"deadline passed after {done} of {len(view)} bytes (conf {TIMEOUT_KEY})")
        try:
            received = sock.recv_into(view[done:])
        except (BlockingIOError, InterruptedError):
            await_ready(sock, select.POLLIN, deadline, clock, f"receiving, {done} of {len(view)} bytes")
            continue
        except OSError as exc:
            raise _connection_lost(exc) from exc
        if received == 0:
            raise ConnectionResetError(f"peer closed after {done} of {len(view)} bytes")
        done += received


def recv_exact(sock: socket.socket, size: int, deadline: float, clock: Clock = time.monotonic) -> bytes:
    """Receive exactly ``size`` bytes. Raises the errors of :func:`recv_into`."""
    data = bytearray(size)
    recv_into(sock, memoryview(data), deadline, clock)
    return bytes(data)


def send_all(sock: socket.socket, data: bytes | memoryview, deadline: float, clock: Clock = time.monotonic) -> None:
    """Send all of ``data``.

    :raises DeadlineError: the peer does not accept all of it in time.
    :raises ConnectionError: the peer has disconnected.
    """
    view = memoryview(data)
    done = 0
    while done < len(view):
        try:
            done += sock.send(view[done:])
        except (BlockingIOError, InterruptedError):
            await_ready(sock, select.POLLOUT, deadline, clock, f"sending, {done} of {len(view)} bytes")
        except OSError as exc:
            raise _connection_lost(exc) from exc


def encode_frame(value: dict[str, Any], maximum: int) -> bytes:
    """Return ``value`` as a frame, with length and checksum.

    :raises InputError: the body has more than ``maximum`` bytes, or ``value`` cannot be written as JSON.
    """
    try:
        body = json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(f"cannot be sent as JSON: {exc}") from exc
    if len(body) > maximum:
        raise InputError(f"a message of {len(body)} bytes: more than {maximum}")
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _decode(head: bytes | bytearray, body: bytes | bytearray) -> dict[str, Any]:
    if _HEAD.unpack_from(head)[1] != zlib.crc32(body):
        raise ProtocolError("peer sent a frame with a wrong checksum")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(f"peer sent a frame that is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ProtocolError(f"peer sent a frame that is a JSON {type(value).__name__}, not an object")
    return value


def _check_length(head: bytes | bytearray, maximum: int) -> int:
    size = int(_HEAD.unpack_from(head)[0])
    if size > maximum:
        raise ProtocolError(f"peer announced a frame of {size} bytes: more than {maximum}")
    return size


def send_frame(
    sock: socket.socket,
    value: dict[str, Any],
    maximum: int,
    deadline: float,
    clock: Clock = time.monotonic,
) -> None:
    """Send ``value`` as one frame.

    :raises InputError: the frame has more than ``maximum`` bytes, or ``value`` cannot be written as JSON.
    :raises DeadlineError: the peer does not accept it in time.
    :raises ConnectionError: the peer has disconnected.
    """
    send_all(sock, encode_frame(value, maximum), deadline, clock)


def recv_frame(sock: socket.socket, maximum: int, deadline: float, clock: Clock = time.monotonic) -> dict[str, Any]:
    """Receive one frame. Its length is checked against ``maximum`` before memory is allocated.

    :raises ProtocolError: the frame is too long, damaged, or not a JSON object.
    :raises DeadlineError: it does not arrive in time.
    :raises ConnectionError: the peer has disconnected.
    """
    head = recv_exact(sock, _HEAD.size, deadline, clock)
    return _decode(head, recv_exact(sock, _check_length(head, maximum), deadline, clock))


class FrameBuffer:
    """Splitter of a byte stream into frames, for a thread that must not wait for the rest of a frame."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the frames that ``data`` completes, in order.

        :raises ProtocolError: see :func:`recv_frame`.
        """
        self._data += data
        frames = []
        while len(self._data) >= _HEAD.size:
            end = _HEAD.size + _check_length(self._data, self._maximum)
            if len(self._data) < end:
                break
            frames.append(_decode(self._data, self._data[_HEAD.size : end]))
            del self._data[:end]
        return frames


def tune(sock: socket.socket) -> None:
    """Make the socket non-blocking without Nagle's algorithm. Detect a silent peer host (no FIN, no RST) after 11 s."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Systems without these options use their own, slower, defaults.
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 11_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hang_up(sock: socket.socket) -> None:
    """End a connection from which another thread reads. That thread sees an EOF and closes it; close() would not wake
    it.

    The later close sends a reset: a peer that waits for buffer space would not notice a FIN.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)


def count_unacknowledged_bytes(sock: socket.socket) -> int:
    """Return the bytes passed to the kernel that the peer's kernel has not acknowledged."""
    [size] = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    return int(size)
