"""Authenticated acceptor: accepts connections, and passes on only peers that proved the gang's secret."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.gang import frames, handshake, listen
from sparkdl_comm.gang.frames import Clock
from sparkdl_comm.gang.handshake import Address

#: Most bytes of a peer's first frame, which names its rank and the requested service.
MAX_HELLO = 4096
#: Seconds that a connection has for handshake and hello.
HANDSHAKE_SECONDS = 10.0
#: Most connections in authentication at once, in addition to the expected peers. More are refused, which bounds the number
#: of threads that strangers can start.
MAX_HANDSHAKES = 256

_log = logging.getLogger(__name__)

OnPeer = Callable[[socket.socket, dict[str, Any]], None]


class Acceptor:
    """Listening socket that passes on only authenticated peers.

    A peer proves that it knows the secret, then sends a hello: one JSON frame of at most 4 KiB. Each connection is
    authenticated in its own thread, so a stranger delays nobody.
    """

    def __init__(
        self,
        ip: str,
        ports: range | None,
        secret: bytes,
        on_peer: OnPeer,
        clock: Clock = time.monotonic,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        *,
        peers: int = 0,
    ) -> None:
        """Bind the socket.

        :param on_peer: ``on_peer(sock, hello)`` runs in the connection's thread and owns ``sock`` from then on. If it
            raises a SparkdlCommError or OSError, ``sock`` is closed.
        :param peers: number of expected peers, which may connect all at once.
        :raises ConfError: see :func:`~sparkdl_comm.gang.listen.bind`.
        """
        self._secret = secret
        self._on_peer = on_peer
        self._clock = clock
        self._handshake_seconds = handshake_seconds
        self._free_slots = threading.Semaphore(MAX_HANDSHAKES + peers)
        self._threads: list[threading.Thread] = []
        self.sock = listen.bind(ip, ports)
        name = self.sock.getsockname()
        self.address: Address = (name[0], name[1])

    def accept(self) -> None:
        """Accept one connection without waiting for its data. Call it when the socket is readable."""
        try:
            sock, _ = self.sock.accept()
        except BlockingIOError:
            return  # the peer has disconnected already
        except OSError as exc:
            # Out of file descriptors: the connection stays in the queue, so without a pause this would be a busy loop.
            _log.warning("cannot accept on %s port %d: %s", *self.address, exc)
            time.sleep(0.05)
            return
        if not self._free_slots.acquire(blocking=False):
            sock.close()
            return
        thread = threading.Thread(target=self._authenticate, args=(sock,), name="sparkdl-handshake", daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _authenticate(self, sock: socket.socket) -> None:
        deadline = self._clock() + self._handshake_seconds
        try:
            try:
                handshake.accept(sock, self._secret, deadline, self._clock)
                hello = frames.recv_frame(sock, MAX_HELLO, deadline, self._clock)
            finally:
                self._free_slots.release()
            self._on_peer(sock, hello)
        except (SparkdlCommError, OSError) as exc:
            _log.info("refused a connection on %s port %d: %s", *self.address, exc)
            sock.close()
        except Exception:  # noqa: BLE001 - a bug must not leave the peer hanging
            _log.exception("unexpected error on a connection on %s port %d", *self.address)
            sock.close()

    def close(self) -> None:
        self.sock.close()

    def join(self, seconds: float) -> None:
        """Wait until the threads of all connections have ended, at most ``seconds``. Call it after :meth:`close`."""
        deadline = self._clock() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - self._clock()))
