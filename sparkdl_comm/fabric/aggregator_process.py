"""An aggregator in a process of its own, beside a rank: adding is not to wait for the interpreter of a worker that computes.

The rank starts it and tells it through a socket pair, which nobody else can reach, who it is and where. It ends with its rank.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkdl_comm.errors import GangError
from sparkdl_comm.fabric.aggregator import AggregatorPart
from sparkdl_comm.fabric.daemon import Daemon
from sparkdl_comm.fabric.protocol import Register
from sparkdl_comm.fabric.wires import Wires
from sparkdl_comm.gang.acceptor import Acceptor
from sparkdl_comm.gang.credentials import Credentials
from sparkdl_comm.gang.frames import recv_frame, send_frame

_MAX_FRAME = 1 << 16
#: Seconds for the process to start and to hear who it is.
_START_SECONDS = 60.0


class AggregatorProcess:
    """Starts it, for the rank whose ``wires`` these are. To be closed."""

    def __init__(self, wires: Wires, limits: dict[str, Any], ports: tuple[int, int]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._sock.setblocking(False)
        told = {"wires": wires.to_json(), "limits": limits, "ports": ports}
        send_frame(self._sock, told, _MAX_FRAME, time.monotonic() + _START_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self, patience: float) -> None:
        """Waits until it has ended, which it does when the job has, for ``patience`` seconds; then ends it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._sock.close()

    def kill(self) -> None:
        """Ends it now."""
        self._process.kill()


class _Listener:
    """Takes the connections of peers on the rails, and hands each to the handler of what it comes for."""

    def __init__(self, credentials: Credentials, addresses: list[str], ports: range | None) -> None:
        self._attempt = credentials.attempt
        self._handlers: dict[str, Callable[[socket.socket, int], None]] = {}
        self._acceptors = {ip: Acceptor(ip, ports, credentials.secret, self._on_peer) for ip in set(addresses)}
        self.rails = [self._acceptors[ip].address for ip in addresses]
        self._selector = selectors.DefaultSelector()
        for acceptor in self._acceptors.values():
            self._selector.register(acceptor.sock, selectors.EVENT_READ, acceptor.accept)
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
        if hello.get("epoch") != self._attempt or handler is None or type(rank) is not int:
            raise GangError(f"an aggregator has no {kind!r:.40} service for rank {rank!r:.20}")
        handler(sock, rank)


def _end_with(sock: socket.socket) -> None:
    """When the rank closes its end, or is gone, so is what the aggregator is for."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def main(fd: int) -> None:
    """The aggregator, to the end; ``fd``: its socket to the rank."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    told = recv_frame(sock, _MAX_FRAME, time.monotonic() + _START_SECONDS)
    threading.Thread(target=_end_with, args=(sock,), name="sparkdl-end", daemon=True).start()
    wires = Wires.from_json(told["wires"])
    first, last = told["ports"]
    listener = _Listener(wires.credentials, [ip for ip, _ in wires.rails], range(first, last + 1) if first else None)
    wires = replace(wires, rails=listener.rails)
    part = AggregatorPart()
    register = Register("aggregator", wires.credentials.rank, wires.host, wires.rails, told["limits"])
    daemon = Daemon(wires, listener.serve, part, register)
    part.await_end()
    daemon.close(0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
