"""A daemon that reads nothing counts as lost. The scheduler waits for it once."""

from __future__ import annotations

import socket

import pytest

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.fabric.control import ControlLink, Peer
from sparkdl_comm.fabric.protocol import End, Register
from tests.unit.gang_helpers import SECONDS


def test_a_peer_that_does_not_take_its_messages() -> None:
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
