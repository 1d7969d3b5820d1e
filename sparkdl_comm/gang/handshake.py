"""Mutual authentication on a fresh TCP connection, and the frames that travel afterwards.

Both sides prove that they know the gang's 32-byte secret; every message has a fixed size, so nothing that a
stranger sends is parsed or makes us allocate (C connects, S accepts, 72 + 72 bytes in all, two round trips):

1. C -> S  magic, 32-byte nonce c
2. S -> C  magic, 32-byte nonce s
3. C -> S  HMAC-SHA256(secret, magic | "C" | c | s)
4. S -> C  HMAC-SHA256(secret, magic | "S" | c | s), only if 3 was right

The role byte keeps a proof from being reflected to its maker, the nonces keep it from being replayed. What
follows is neither encrypted nor signed: the network may be read by others, but strangers cannot join.

Sockets are non-blocking and waited for with poll(2), never `settimeout`: that one belongs to the socket, so a
reading and a writing thread would change each other's deadline. A deadline is a value of `clock`, in seconds,
and covers the whole of a call: a peer that sends one byte now and then does not extend it.

Errors: AuthenticationError and DeadlineError from the handshake; ConnectionError (the builtin one) when the
peer goes away later, for the caller to say which rank that was; ProtocolError for a frame that is too long or
no JSON object.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import select
import socket
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

from sparkdl_comm.errors import AuthenticationError, DeadlineError, GangError, InputError, ProtocolError

Clock = Callable[[], float]
Address = tuple[str, int]

MAGIC = b"SPKDLHS2"
SECRET_BYTES = 32
NONCE_BYTES = 32
TIMEOUT_KEY = "spark.sparkdl.comm.timeout"
#: Before each frame: length and CRC-32 of its body.
_HEAD = struct.Struct("!II")


def _wait(sock: socket.socket, event: int, deadline: float, clock: Clock, what: str) -> None:
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
    """Fill `view` (bytes). Raises DeadlineError, ConnectionError if the peer closes before."""
    done = 0
    while done < len(view):
        # Looked at before each read: a peer that always has one more byte ready must not extend it either.
        if clock() >= deadline:
            raise DeadlineError(f"deadline passed after {done} of {len(view)} bytes (conf {TIMEOUT_KEY})")
        try:
            got = sock.recv_into(view[done:])
        except (BlockingIOError, InterruptedError):
            _wait(sock, select.POLLIN, deadline, clock, f"receiving, {done} of {len(view)} bytes")
            continue
        except OSError as exc:
            raise _gone(exc) from exc
        if got == 0:
            raise ConnectionResetError(f"peer closed after {done} of {len(view)} bytes")
        done += got


def recv_exact(sock: socket.socket, size: int, deadline: float, clock: Clock = time.monotonic) -> bytes:
    """Exactly `size` bytes. Raises as `recv_into`."""
    data = bytearray(size)
    recv_into(sock, memoryview(data), deadline, clock)
    return bytes(data)


def send_all(sock: socket.socket, data: bytes | memoryview, deadline: float, clock: Clock = time.monotonic) -> None:
    """Send all of `data`. Raises DeadlineError, ConnectionError."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        try:
            done += sock.send(view[done:])
        except (BlockingIOError, InterruptedError):
            _wait(sock, select.POLLOUT, deadline, clock, f"sending, {done} of {len(view)} bytes")
        except OSError as exc:
            raise _gone(exc) from exc


def encode_frame(value: dict[str, Any], maximum: int) -> bytes:
    """Length and CRC-32 of the body, 4 bytes each (big-endian), and the body: the UTF-8 JSON of `value`. Raises InputError
    over `maximum` bytes or no JSON."""
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
    """Send `value` as one frame. Raises InputError (over `maximum` bytes), DeadlineError, ConnectionError."""
    send_all(sock, encode_frame(value, maximum), deadline, clock)


def recv_frame(sock: socket.socket, maximum: int, deadline: float, clock: Clock = time.monotonic) -> dict[str, Any]:
    """One frame; its length is compared with `maximum` before anything is allocated for it.

    Raises ProtocolError (too long, damaged, no JSON object), DeadlineError, ConnectionError.
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
        """The frames that `data` completes, in order. Raises ProtocolError as `recv_frame` does."""
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


def _proof(secret: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.new(secret, MAGIC + role + client_nonce + server_nonce, hashlib.sha256).digest()


def _check_secret(secret: bytes) -> None:
    if len(secret) != SECRET_BYTES:
        raise InputError(f"a gang's secret has {SECRET_BYTES} bytes, not {len(secret)}")


def _recv_nonce(sock: socket.socket, deadline: float, clock: Clock) -> bytes:
    if recv_exact(sock, len(MAGIC), deadline, clock) != MAGIC:
        raise AuthenticationError("peer does not speak this version of sparkdl_comm's protocol")
    return recv_exact(sock, NONCE_BYTES, deadline, clock)


def accept(sock: socket.socket, secret: bytes, deadline: float, clock: Clock = time.monotonic) -> None:
    """Authenticate `sock`, just accepted; afterwards it is non-blocking, for `recv_frame` and `send_frame`.

    Raises AuthenticationError or DeadlineError; closing `sock` is the caller's business.
    """
    _check_secret(secret)
    try:
        tune(sock)
        theirs = _recv_nonce(sock, deadline, clock)
        ours = os.urandom(NONCE_BYTES)
        send_all(sock, MAGIC + ours, deadline, clock)
        proof = recv_exact(sock, hashlib.sha256().digest_size, deadline, clock)
        if not hmac.compare_digest(proof, _proof(secret, b"C", theirs, ours)):
            raise AuthenticationError("peer does not know the gang's secret")
        send_all(sock, _proof(secret, b"S", theirs, ours), deadline, clock)
    except ConnectionError as exc:
        raise AuthenticationError(f"peer went away during the handshake: {exc}") from exc


def connect(
    address: Address,
    secret: bytes,
    deadline: float,
    bind_ip: str | None = None,
    clock: Clock = time.monotonic,
) -> socket.socket:
    """An authenticated, non-blocking connection to `address` (numeric IP, port), from `bind_ip` if given.

    Raises AuthenticationError, DeadlineError, InputError (no numeric address), GangError with the OSError as
    its cause if there is no connection at all (refused, no route).
    """
    _check_secret(secret)
    host, port = address
    try:
        family, kind, proto, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
    except (OSError, ValueError, OverflowError) as exc:
        raise InputError(f"not a numeric address: {host!r}, port {port!r}: {exc}") from exc
    sock = socket.socket(family, kind, proto)
    try:
        _dial(sock, target, bind_ip, deadline, clock)
        _prove(sock, secret, deadline, clock)
    except BaseException as exc:
        sock.close()
        if isinstance(exc, DeadlineError):
            raise DeadlineError(f"{host} port {port}: {exc.message}") from exc
        raise
    return sock


def _dial(sock: socket.socket, target: Any, bind_ip: str | None, deadline: float, clock: Clock) -> None:
    try:
        tune(sock)
        if bind_ip is not None:
            sock.bind((bind_ip, 0))
        try:
            sock.connect(target)
        except BlockingIOError:
            _wait(sock, select.POLLOUT, deadline, clock, "connecting")
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number)) from None
    except GangError:  # DeadlineError is an OSError too
        raise
    except OSError as exc:
        source = f" from {bind_ip}" if bind_ip else ""
        raise GangError(f"no connection to {target[0]} port {target[1]}{source}: {exc}") from exc


def _prove(sock: socket.socket, secret: bytes, deadline: float, clock: Clock) -> None:
    try:
        ours = os.urandom(NONCE_BYTES)
        send_all(sock, MAGIC + ours, deadline, clock)
        theirs = _recv_nonce(sock, deadline, clock)
        send_all(sock, _proof(secret, b"C", ours, theirs), deadline, clock)
        proof = recv_exact(sock, hashlib.sha256().digest_size, deadline, clock)
    except ConnectionError as exc:
        raise AuthenticationError(
            f"peer closed during the handshake, as it does when the secret is wrong: {exc}"
        ) from exc
    if not hmac.compare_digest(proof, _proof(secret, b"S", ours, theirs)):
        raise AuthenticationError("peer does not know the gang's secret")
