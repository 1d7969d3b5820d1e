"""The scheduler's connections with daemons: silent ones, and those that stop within a message."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkdl_comm.errors import DeadlineError, GangError
from sparkdl_comm.fabric.control import MAX_FRAME_BYTES, ControlInbox, ControlLink, Peer, encode
from sparkdl_comm.fabric.protocol import End, Leave, Register
from sparkdl_comm.fabric.transport import HEADER_BYTES, Arrival, Receiver
from sparkdl_comm.gang.frames import encode_frame
from tests.unit.gang_helpers import SECONDS


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        yield ours, theirs


def test_a_peer_that_does_not_take_its_messages() -> None:
    """A daemon that reads nothing counts as lost. The scheduler waits for it once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sock.setblocking(False)
        link = ControlLink(ours, timeout_seconds=0.1)
        with pytest.raises(DeadlineError):
            link.send(End("x" * 2_000_000))
        Peer(Register("server", 1, "host", [], {}), link).send(End("x" * 2_000_000))
        with pytest.raises(ConnectionError):
            link.receive(SECONDS)


def test_a_daemon_that_stops_within_a_message() -> None:
    """It is lost after the timeout. Between messages it may be silent for longer."""
    inbox = ControlInbox(0.2)
    with pair() as (ours, theirs):
        threading.Thread(target=inbox.serve, args=(theirs, 1), daemon=True).start()
        register = Register("worker", 1, "host", [], {})
        ControlLink(ours, SECONDS).send(register)
        received = inbox.next_message(SECONDS)
        assert received is not None
        peer, message = received
        assert message == register
        assert inbox.next_message(0.5) is None
        ours.sendall(encode_frame(encode(Leave()), MAX_FRAME_BYTES)[:-1])
        assert inbox.next_message(SECONDS) == (peer, None)


def test_a_sender_that_stops_within_a_header() -> None:
    refusals: list[GangError] = []
    arrivals: list[Arrival] = []
    receiver = Receiver(arrivals.append, refusals.append, 0.2)
    with pair() as (ours, theirs):
        thread = threading.Thread(target=receiver.serve, args=(theirs, 1), daemon=True)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        ours.sendall(bytes(HEADER_BYTES - 1))
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert (arrivals, refusals) == ([], [])
