"""Mutual authentication on a new TCP connection.

Both sides prove that they know the gang's 32-byte secret. Every message has a fixed size, so a stranger's data is never
parsed and allocates no memory. C connects, S accepts; 72 + 72 bytes in all, two round trips:

1. C -> S  magic, 32-byte nonce c
2. S -> C  magic, 32-byte nonce s
3. C -> S  HMAC-SHA256(secret, magic | "C" | c | s)
4. S -> C  HMAC-SHA256(secret, magic | "S" | c | s), only if 3 was right

The role byte keeps a proof from being reflected to its maker. The nonces keep it from being replayed. The frames that
follow (``frames.py``) are neither encrypted nor signed: others may read the traffic, but strangers cannot join.

A process that a rank has started, such as an aggregator of strategy ``fabric``, receives the rank's :class:`Credentials`
over a pipe. It can then use the services of other ranks like the rank itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from sparkdl_comm.errors import AuthenticationError, DeadlineError, GangError, InputError
from sparkdl_comm.gang import frames
from sparkdl_comm.gang.frames import Clock, await_ready, recv_exact, send_all, tune

Address = tuple[str, int]

MAGIC = b"SPKDLHS2"
SECRET_BYTES = 32
NONCE_BYTES = 32
#: Maximum bytes of a peer's first frame, which names its rank and the requested service.
MAX_HELLO = 4096


def _proof(secret: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.new(secret, MAGIC + role + client_nonce + server_nonce, hashlib.sha256).digest()


def _check_secret(secret: bytes) -> None:
    if len(secret) != SECRET_BYTES:
        raise InputError(f"a gang's secret has {SECRET_BYTES} bytes, not {len(secret)}.")


def _recv_nonce(sock: socket.socket, deadline: float, clock: Clock) -> bytes:
    if recv_exact(sock, len(MAGIC), deadline, clock) != MAGIC:
        raise AuthenticationError("peer does not speak this version of sparkdl_comm's protocol")
    return recv_exact(sock, NONCE_BYTES, deadline, clock)


def accept(sock: socket.socket, secret: bytes, deadline: float, clock: Clock = time.monotonic) -> None:
    """Authenticate ``sock``, a newly accepted connection. Afterwards it is non-blocking, for ``recv_frame`` and
    ``send_frame``.

    The caller closes ``sock``, also after an error.

    :raises AuthenticationError: the peer does not know the secret, or disconnects.
    :raises DeadlineError: the handshake takes too long.
    """
    _check_secret(secret)
    try:
        tune(sock)
        peer_nonce = _recv_nonce(sock, deadline, clock)
        own_nonce = os.urandom(NONCE_BYTES)
        send_all(sock, MAGIC + own_nonce, deadline, clock)
        proof = recv_exact(sock, hashlib.sha256().digest_size, deadline, clock)
        if not hmac.compare_digest(proof, _proof(secret, b"C", peer_nonce, own_nonce)):
            raise AuthenticationError("peer does not know the gang's secret")
        send_all(sock, _proof(secret, b"S", peer_nonce, own_nonce), deadline, clock)
    except ConnectionError as exc:
        raise AuthenticationError(f"peer disconnected during the handshake: {exc}") from exc


def connect(
    address: Address,
    secret: bytes,
    deadline: float,
    bind_ip: str | None = None,
    clock: Clock = time.monotonic,
) -> socket.socket:
    """Return an authenticated, non-blocking connection to ``address`` (numeric IP, port).

    :param bind_ip: local address to connect from. None: the system chooses.
    :raises AuthenticationError: the peer does not know the secret.
    :raises DeadlineError: there is no authenticated connection in time.
    :raises InputError: the address is not numeric.
    :raises GangError: the connection fails (refused, no route); its cause is the OSError.
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
            await_ready(sock, select.POLLOUT, deadline, clock, "connecting")
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
        own_nonce = os.urandom(NONCE_BYTES)
        send_all(sock, MAGIC + own_nonce, deadline, clock)
        peer_nonce = _recv_nonce(sock, deadline, clock)
        send_all(sock, _proof(secret, b"C", own_nonce, peer_nonce), deadline, clock)
        proof = recv_exact(sock, hashlib.sha256().digest_size, deadline, clock)
    except ConnectionError as exc:
        raise AuthenticationError(
            f"peer closed during the handshake, as it does when the secret is wrong: {exc}"
        ) from exc
    if not hmac.compare_digest(proof, _proof(secret, b"S", own_nonce, peer_nonce)):
        raise AuthenticationError("peer does not know the gang's secret")


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
        sock = connect(address, self.secret, deadline, bind_ip, clock)
        hello = {"kind": kind, "rank": self.rank, "attempt": self.attempt}
        try:
            frames.send_frame(sock, hello, MAX_HELLO, deadline, clock)
        except BaseException:
            sock.close()
            raise
        return sock
