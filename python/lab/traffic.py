"""Program of ``lab check`` on every host, which sends and receives as fast as TCP allows.

    python python/lab/traffic.py '{"listen": [[address, port], …], "send": [[address, port], …],
                                         "begin": 1234.5, "seconds": 2.0}'

Each connection has a thread. The program prints JSON: for each listening address the bytes per second that its connection
received in ``seconds`` from ``begin`` on, and the time of its first bytes. Times are time.monotonic's, the same for all hosts
of a machine. A sender stops when its peer hangs up.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

#: Seconds for a peer to connect, or to send.
PATIENCE = 20.0
_CHUNK = 1 << 18


def receive(server: socket.socket, begin: float, seconds: float) -> tuple[float, float]:
    """Return the bytes per second of the first connection, and the time of its first bytes."""
    server.settimeout(PATIENCE)
    connection, _ = server.accept()
    buffer = bytearray(_CHUNK)
    with connection:
        connection.settimeout(PATIENCE)
        arrived, opened, now, total = 0.0, 0.0, 0.0, 0
        while now < begin + seconds:
            count = connection.recv_into(buffer)
            if count == 0:
                raise ConnectionError("the sender hung up")
            now = time.monotonic()
            arrived = arrived or now
            if opened:
                total += count
            elif now >= begin:
                opened = now
        return (total / (now - opened) if now > opened else 0.0), arrived


def send(address: str, port: int) -> None:
    """Send until the receiver hangs up."""
    chunk = bytes(_CHUNK)
    with _connect(address, port) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(chunk)


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, port), PATIENCE)
        except ConnectionRefusedError:  # its program is still starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main() -> None:
    job = json.loads(sys.argv[1])
    servers = [socket.create_server((address, port)) for address, port in job["listen"]]
    for address, port in job["send"]:
        threading.Thread(target=send, args=(address, port), daemon=True).start()
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        print(json.dumps(list(pool.map(lambda server: receive(server, job["begin"], job["seconds"]), servers))))


if __name__ == "__main__":
    main()
