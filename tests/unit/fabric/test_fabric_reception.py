"""The scheduler's connections: silent daemons, daemons that stop within a message, and second registrations."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_comm.errors import DeadlineError, GangError
from sparkdl_comm.fabric.control import MAX_FRAME_BYTES, ControlInbox, ControlLink, Peer, encode
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.protocol import End, Leave, Register, Welcome
from sparkdl_comm.fabric.service import SchedulerService
from sparkdl_comm.fabric.transport import HEADER_BYTES, Arrival, Receiver
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import encode_frame
from tests.unit.fabric_helpers import conf
from tests.unit.gang_helpers import SECONDS

PARAMS = FabricParams("async:30")


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
            link.receive()


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


class Registrations:
    """A scheduler that waits for two ranks, and daemons that register with it."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        gang: Any = SimpleNamespace(world=2, serve=self._serve, announce_failure=self.failures.append)
        self.service = SchedulerService(gang, PARAMS, conf(), tolerates_loss=False)

    def _serve(self, kind: str, handler: Any) -> None:
        self._handler = handler

    def register(self, register: Register) -> ControlLink:
        """Register over a connection of its own, and return the daemon's end of it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        threading.Thread(target=self._handler, args=(theirs, register.rank), daemon=True).start()
        link = ControlLink(ours, SECONDS)
        link.send(register)
        return link


SERVER = Register("server", 0, "host", [], PARAMS.to_json(), elements=1)
WORKER = Register("worker", 1, "host", [], PARAMS.to_json())


@pytest.mark.parametrize("is_same_connection", [True, False])
def test_a_rank_that_registers_twice_before_all_have(is_same_connection: bool) -> None:
    """It does not count as the rank that is missing. All daemons hear of it."""
    registrations = Registrations()
    links = [registrations.register(SERVER)]
    if is_same_connection:
        links[0].send(SERVER)
    else:
        links.append(registrations.register(SERVER))
    for link in links:
        with link.sock:
            assert link.receive() == End("rank 0, server, registered with the fabric twice")
    [failure] = registrations.failures
    assert (failure.error, failure.rank) == ("ProtocolError", 0)


def test_a_daemon_that_registers_after_the_job_has_begun() -> None:
    """It is refused at once. The others go on."""
    registrations = Registrations()
    links = [registrations.register(register) for register in (SERVER, WORKER)]
    assert [link.receive() for link in links] == 2 * [Welcome([0], [1])]
    late = registrations.register(WORKER)
    with late.sock:
        assert late.receive() == End("rank 1, worker, registered after the fabric's job had begun")
    registrations.service.stop()
    for link in links:
        with link.sock:
            assert link.receive() == End("")
    assert registrations.failures == []
