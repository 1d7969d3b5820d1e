"""Sending and receiving on authenticated sockets: bytes with a deadline, and frames, which are JSON objects.

A frame is the length and the CRC-32 of its body, 4 bytes each (big-endian), and the body: the UTF-8 JSON of the object. Its
length is compared with what the receiver allows before anything is allocated for it.

Sockets are non-blocking and waited for with poll(2), never ``settimeout``: a timeout belongs to the socket, so a reading and a
writing thread would change each other's deadline. A deadline is a value of ``clock``, in seconds, and covers the whole of a
call: a peer that sends one byte now and then does not extend it.

Errors: DeadlineError; ConnectionError (the builtin one) when the peer goes away, for the caller to say which rank that was;
ProtocolError for a frame that is too long, damaged, or no JSON object.
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
#: Before each frame: length and CRC-32 of its body.
_HEAD = struct.Struct("!II")


def await_ready(sock: socket.socket, event: int, deadline: float, clock: Clock, what: str) -> None:
    """Returns when poll(2) reports ``event`` on the socket. ``what``: what the caller is doing, for the error.

    :raises DeadlineError: it does not until ``deadline``.
    """
    poll = select.poll()
    poll.register(sock, event)
    while True:
        left = deadline - clock()
        if left <= 0:
            raise DeadlineError(f"deadline passed while {what} (conf {TIMEOUT_KEY})")
        # A minute at most, so that a clock that is not the kernel's is looked at again.
        if poll.poll(math.ceil(min(left, 60.0) * 1000)):
            return


def _gone(exc: OSError) -> ConnectionError:
    # ETIMEDOUT and EHOSTUNREACH are no ConnectionErrors in Python, but mean the same here.
    return ConnectionAbortedError(exc.errno, f"connection lost: {exc.strerror or exc}")


def recv_into(sock: socket.socket, view: memoryview, deadline: float, clock: Clock = time.monotonic) -> None:
    """Fill ``view`` (bytes).

    :raises DeadlineError: not all of it comes in time.
    :raises ConnectionError: the peer closes before.
    """
    done = 0
    while done < len(view):
        # Looked at before each read: a peer that always has one more byte ready must not extend it either.
        if clock() >= deadline:
            raise DeadlineError(f"deadline passed after {done} of {len(view)} bytes (conf {TIMEOUT_KEY})")
        try:
            got = sock.recv_into(view[done:])
        except (BlockingIOError, InterruptedError):
            await_ready(sock, select.POLLIN, deadline, clock, f"receiving, {done} of {len(view)} bytes")
            continue
        except OSError as exc:
            raise _gone(exc) from exc
        if got == 0:
            raise ConnectionResetError(f"peer closed after {done} of {len(view)} bytes")
        done += got


def recv_exact(sock: socket.socket, size: int, deadline: float, clock: Clock = time.monotonic) -> bytes:
    """Receives exactly ``size`` bytes. Errors are those of :func:`recv_into`."""
    data = bytearray(size)
    recv_into(sock, memoryview(data), deadline, clock)
    return bytes(data)


def send_all(sock: socket.socket, data: bytes | memoryview, deadline: float, clock: Clock = time.monotonic) -> None:
    """Send all of ``data``.

    :raises DeadlineError: the peer does not take all of it in time.
    :raises ConnectionError: the peer is gone.
    """
    view = memoryview(data)
    done = 0
    while done < len(view):
        try:
            done += sock.send(view[done:])
        except (BlockingIOError, InterruptedError):
            await_ready(sock, select.POLLOUT, deadline, clock, f"sending, {done} of {len(view)} bytes")
        except OSError as exc:
            raise _gone(exc) from exc


def encode_frame(value: dict[str, Any], maximum: int) -> bytes:
    """``value`` as a frame, length and checksum included.

    :raises InputError: its body has more than ``maximum`` bytes, or it cannot be written as JSON.
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
        raise ProtocolError("peer sent a frame with another checksum than its bytes have")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(f"peer sent a frame that is no JSON: {exc}") from exc
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

    :raises InputError: it has more than ``maximum`` bytes, or cannot be written as JSON.
    :raises DeadlineError: the peer does not take it in time.
    :raises ConnectionError: the peer is gone.
    """
    send_all(sock, encode_frame(value, maximum), deadline, clock)


def recv_frame(sock: socket.socket, maximum: int, deadline: float, clock: Clock = time.monotonic) -> dict[str, Any]:
    """One frame; its length is compared with ``maximum`` before anything is allocated for it.

    :raises ProtocolError: it is too long, damaged, or no JSON object.
    :raises DeadlineError: it does not come in time.
    :raises ConnectionError: the peer is gone.
    """
    head = recv_exact(sock, _HEAD.size, deadline, clock)
    return _decode(head, recv_exact(sock, _check_length(head, maximum), deadline, clock))


class FrameBuffer:
    """Cuts a stream that arrives in pieces into frames, for a thread that must not wait for the rest of
    one."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The frames that ``data`` completes, in order.

        :raises ProtocolError: as :func:`recv_frame` does.
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
    """Non-blocking, no Nagle; a peer host that falls silent (no FIN, no RST) is noticed after 11 s."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has these; there its own, slower, defaults hold.
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 11_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hang_up(sock: socket.socket) -> None:
    """End a connection that another thread reads from: that one sees an EOF, and closes it (close() would not
    wake it). With a reset then, as a peer that waits for room to send would not notice a FIN."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)


def unacknowledged(sock: socket.socket) -> int:
    """Bytes that were given to the kernel and that the peer's kernel has not acknowledged."""
    [held] = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    return int(held)
