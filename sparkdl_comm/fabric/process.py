"""Node in a separate process of a rank: an aggregator, a server or a replica.

Adding and applying updates then need not wait for the interpreter of a computing worker, and losing a server's process
does not lose the rank.

The rank starts the process and sends it its identity through a socket pair that nobody else can reach. The process ends
with its rank.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import GangError, SparkdlCommError
from sparkdl_comm.fabric.daemon import Daemon, Endpoints
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.protocol import Register
from sparkdl_comm.fabric.roles import Aggregator
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.gang.frames import await_message, recv_frame, recv_into, send_all, send_frame
from sparkdl_comm.gang.handshake import Credentials
from sparkdl_comm.gang.listen import Acceptor

_MAX_FRAME_BYTES = 1 << 16
#: Seconds for the process to start and to receive its identity.
_START_SECONDS = 60.0
_PIECE_BYTES = 8 << 20

_log = logging.getLogger(__name__)


class NodeProcess:
    """Handle of a node's process. The constructor starts it; it must be closed.

    :param endpoints: the endpoints of the rank.
    :param ports: range of listening ports, as in ``spark.sparkdl.comm.ports``.
    :param role: ``aggregator``, ``server`` or ``replica``.
    :param state: initial state of a server or replica, in the format of :meth:`Server.copy_state`.
    :raises ConnectionError: the process ended before it had received its identity.
    :raises DeadlineError: the process did not receive its identity within 60 s.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        params: FabricParams,
        ports: tuple[int, int],
        role: str,
        state: NDArray[np.float32] | None = None,
    ) -> None:
        self.role = role
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._sock, child_sock = socket.socketpair()
        with child_sock:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(child_sock.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[child_sock.fileno()],
            )
        self._sock.setblocking(False)
        self._elements = 0 if state is None else len(state)
        identity = {
            "endpoints": endpoints.to_json(),
            "params": params.to_json(),
            "ports": ports,
            "role": role,
            "elements": self._elements,
        }
        with ExitStack() as on_failure:
            on_failure.callback(self.close, 0.0)
            send_frame(self._sock, identity, _MAX_FRAME_BYTES, time.monotonic() + _START_SECONDS)
            if state is not None:
                _send_state(self._sock, state, _START_SECONDS)
            on_failure.pop_all()

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def fetch_state(self, patience: float) -> NDArray[np.float32]:
        """Return the state of a server or replica, in the format of :meth:`Server.copy_state`. It must not be
        applying updates.

        :raises ConnectionError: the process has ended.
        :raises DeadlineError: the process sends nothing for ``patience`` seconds.
        """
        send_frame(self._sock, {"asks": "state"}, _MAX_FRAME_BYTES, time.monotonic() + patience)
        return _receive_state(self._sock, self._elements, patience)

    def close(self, patience: float) -> None:
        """Wait up to ``patience`` seconds for the process to end with the job, then kill it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._sock.close()

    def kill(self) -> None:
        """Kill the process at once."""
        self._process.kill()


def _send_state(sock: socket.socket, state: NDArray[np.float32], patience: float) -> None:
    """Send a node's state, in pieces that may take ``patience`` seconds each."""
    view = state.view(np.uint8).data
    for start in range(0, len(view), _PIECE_BYTES):
        send_all(sock, view[start : start + _PIECE_BYTES], time.monotonic() + patience)


def _receive_state(sock: socket.socket, elements: int, patience: float) -> NDArray[np.float32]:
    """Receive what :func:`_send_state` sends."""
    state = np.empty(elements, np.float32)
    view = state.view(np.uint8).data
    for start in range(0, len(view), _PIECE_BYTES):
        recv_into(sock, view[start : start + _PIECE_BYTES], time.monotonic() + patience)
    return state


class _Listener:
    """Acceptor of peer connections on the rails. It passes each connection to the handler of the requested service."""

    def __init__(self, credentials: Credentials, addresses: list[str], ports: range | None) -> None:
        self._attempt = credentials.attempt
        self._handlers: dict[str, Callable[[socket.socket, int], None]] = {}
        self._selector = selectors.DefaultSelector()
        acceptors = {ip: Acceptor(ip, ports, credentials.secret, self._on_peer) for ip in set(addresses)}
        for acceptor in acceptors.values():
            self._selector.register(acceptor.sock, selectors.EVENT_READ, acceptor.accept)
        self.rails = [acceptors[ip].address for ip in addresses]
        threading.Thread(target=self._run, name="sparkdl-fabric-listener", daemon=True).start()

    def serve(self, kind: str, handler: Callable[[socket.socket, int], None]) -> None:
        self._handlers[kind] = handler

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _on_peer(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        kind, rank = hello.get("kind"), hello.get("rank")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if hello.get("attempt") != self._attempt or handler is None or type(rank) is not int:
            raise GangError(f"this node has no {kind!r:.40} service for rank {rank!r:.20}")
        handler(sock, rank)


def _answer_state_requests(sock: socket.socket, server: Server | None, patience: float) -> None:
    """Answer the rank's requests for the state. Exit the process when the rank closes its end or dies."""
    try:
        while True:
            await_message(sock)
            recv_frame(sock, _MAX_FRAME_BYTES, time.monotonic() + patience)
            if server is not None:
                _send_state(sock, server.copy_state(), patience)
    finally:
        os._exit(0)


def main(fd: int) -> None:
    """Run the node until it ends. ``fd``: its socket to the rank."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    identity = recv_frame(sock, _MAX_FRAME_BYTES, time.monotonic() + _START_SECONDS)
    endpoints = Endpoints.from_json(identity["endpoints"])
    first, last = identity["ports"]
    listener = _Listener(
        endpoints.credentials, [ip for ip, _ in endpoints.rails], range(first, last + 1) if first else None
    )
    endpoints = replace(endpoints, rails=listener.rails)
    params = FabricParams(**identity["params"])
    server: Server | None = None
    shard_fields: dict[str, int] = {}
    if identity["role"] != "aggregator":
        state = _receive_state(sock, identity["elements"], _START_SECONDS)
        model = state[: len(state) // 2].copy() if params.momentum else state
        shard_fields = {"elements": len(model), "crc": zlib.crc32(model.data)}
        server = Server(model, params)
        server.load_state(state)
        server.begin()
    node_role = server or Aggregator()
    # Start this thread only now: until here the socket carries the initial state.
    threading.Thread(
        target=_answer_state_requests, args=(sock, server, endpoints.timeout), name="sparkdl-rank", daemon=True
    ).start()
    register = Register(
        identity["role"],
        endpoints.credentials.rank,
        endpoints.host,
        endpoints.rails,
        params.to_json(),
        helps=True,
        **shard_fields,
    )
    daemon = Daemon(endpoints, listener.serve, node_role, register)
    try:
        node_role.await_end()
    except SparkdlCommError as exc:
        # All nodes have been informed, and the rank raises the error.
        _log.warning("%s of rank %d ended: %s", identity["role"], endpoints.credentials.rank, exc.message)
    daemon.close(0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
