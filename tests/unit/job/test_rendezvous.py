"""Ranks that meet at the driver's listener."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import (
    AuthenticationError,
    DeadlineError,
    GangError,
    InputError,
    ProtocolError,
    RankLostError,
    SparkdlCommError,
)
from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.listen import Acceptor
from sparkdl_comm.job import rendezvous
from sparkdl_comm.job.driver_listener import DriverListener
from sparkdl_comm.job.task import RankTask
from tests.forkserver import context
from tests.unit.gang_helpers import SECONDS, SECRET, hangs_up, wait_for

ATTEMPT = "e/0"


def listen(world: int, timeout: float = SECONDS) -> DriverListener:
    return DriverListener("127.0.0.1", None, SECRET, print, attempt=ATTEMPT, world=world, timeout=timeout)


def connect(listener: DriverListener, secret: bytes = SECRET) -> socket.socket:
    return handshake.connect(listener.address, secret, time.monotonic() + SECONDS)


def register(
    listener: DriverListener, rank, world: int, *, attempt: str = ATTEMPT, text: str | None = None
) -> list[str]:
    text = f"I am {rank}" if text is None else text
    return rendezvous.register(connect(listener), rank, world, attempt, text, SECONDS)


def arrived(listener: DriverListener, count: int) -> bool:
    return wait_for(lambda: len(listener._rendezvous._texts) == count)


class Ranks:
    """Ranks in threads, which start one after the other: each when the one before is registered."""

    def __init__(self, listener: DriverListener, world: int, order: Iterable[int]) -> None:
        self._pool = ThreadPoolExecutor(world)
        self.of: dict[int, Future[list[str]]] = {}
        for count, rank in enumerate(order, 1):
            self.of[rank] = self._pool.submit(register, listener, rank, world)
            assert arrived(listener, count)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()

    def error(self, rank: int) -> SparkdlCommError:
        error = self.of[rank].exception(SECONDS)
        assert isinstance(error, SparkdlCommError)
        return error


def handshakes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sparkdl-handshake"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_they_come_in_any_order(order):
    with listen(3) as listener, Ranks(listener, 3, order) as ranks:
        for rank in range(3):
            assert ranks.of[rank].result(SECONDS) == ["I am 0", "I am 1", "I am 2"]
        assert wait_for(lambda: not handshakes())  # no connection is kept


def test_nobody_is_told_before_the_last_has_come():
    with listen(3) as listener, Ranks(listener, 3, [2, 0]) as ranks:
        time.sleep(0.1)
        assert not any(future.done() for future in ranks.of.values())
        assert register(listener, 1, 3) == ranks.of[0].result(SECONDS)


def test_a_gang_of_one():
    with listen(1) as listener:
        assert register(listener, 0, 1) == ["I am 0"]


def test_64_at_once():
    text = "ü" * 3000  # more than a segment
    with listen(64) as listener, ThreadPoolExecutor(64) as pool:
        together = threading.Barrier(64)

        def one(rank: int) -> list[str]:
            together.wait(SECONDS)
            return register(listener, rank, 64, text=f"{rank} {text}")

        for texts in pool.map(one, range(64), timeout=2 * SECONDS):
            assert texts == [f"{rank} {text}" for rank in range(64)]


def test_those_who_do_not_come_are_named():
    with listen(4, timeout=0.5) as listener, Ranks(listener, 4, [3, 0]) as ranks:
        for rank in (0, 3):
            error = ranks.error(rank)
            assert isinstance(error, DeadlineError)
            assert "ranks 1, 2 of 4 did not reach" in str(error)
            assert "0.5 s" in str(error)
            assert "spark.sparkdl.comm.timeout" in str(error)
            assert (error.rank, error.phase) == (1, "join")
        with pytest.raises(DeadlineError, match="ranks 1, 2 of 4"):  # it came too late
            register(listener, 1, 4)


def is_killed(address, world, pipe):
    sock = handshake.connect(address, SECRET, time.monotonic() + SECONDS)
    pipe.send(os.getpid())
    rendezvous.register(sock, 1, world, ATTEMPT, "I am 1", SECONDS)


@pytest.mark.slow
def test_a_rank_that_dies_while_it_waits():
    ours, theirs = context.Pipe()
    with listen(3) as listener:
        process = context.Process(target=is_killed, args=(listener.address, 3, theirs), daemon=True)
        process.start()
        assert ours.poll(3 * SECONDS)  # a process may start slowly; the others' time runs from its registration on
        assert arrived(listener, 1)
        with Ranks(listener, 3, [2]) as ranks:
            assert arrived(listener, 2)
            os.kill(ours.recv(), signal.SIGKILL)
            error = ranks.error(2)
            assert isinstance(error, RankLostError)
            assert (error.rank, error.phase) == (1, "join")
            with pytest.raises(RankLostError, match="rank 1 died"):  # nor does anybody wait who comes now
                register(listener, 0, 3)
            process.join(SECONDS)


def test_a_driver_that_gives_up():
    """As it does when Spark says that a task has failed."""
    with listen(3) as listener, Ranks(listener, 3, [1]) as ranks:
        listener.close()
        error = ranks.error(1)
    assert isinstance(error, GangError)
    assert "gave up the run before ranks 0, 2 of 3" in str(error)
    assert wait_for(lambda: not handshakes())


def test_a_driver_that_says_nothing(monkeypatch):
    monkeypatch.setattr(rendezvous, "GRACE_SECONDS", 0.1)
    with listen(2) as listener, pytest.raises(DeadlineError):
        rendezvous.register(connect(listener), 0, 2, ATTEMPT, "", 0.1)


def test_strangers_and_ranks_of_old_attempts_stay_out():
    with listen(2) as listener, Ranks(listener, 2, [0]) as ranks:
        with pytest.raises(AuthenticationError):
            connect(listener, b"x" * 32)
        with pytest.raises(GangError, match="refused rank 1 of gang attempt e/9"):
            register(listener, 1, 2, attempt="e/9")
        with socket.create_connection(listener.address) as silent, socket.create_connection(listener.address) as loud:
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert hangs_up(loud)
            assert register(listener, 1, 2) == ["I am 0", "I am 1"] == ranks.of[0].result(SECONDS)
            silent.close()


def test_a_rank_that_is_there_already():
    with listen(2) as listener, Ranks(listener, 2, [0]) as ranks:
        with pytest.raises(GangError, match="rank 0 has registered already"):
            register(listener, 0, 2, text="another 0")
        assert register(listener, 1, 2) == ["I am 0", "I am 1"] == ranks.of[0].result(SECONDS)
        with pytest.raises(GangError, match="rank 1 has registered already"):
            register(listener, 1, 2)


@pytest.mark.parametrize("rank", [2, -1, "0", True, None])
def test_ranks_that_there_are_not(rank):
    with listen(2) as listener, pytest.raises(GangError, match=f"no rank {rank!r} in a gang of 2"):
        register(listener, rank, 2)


def test_too_much_to_tell():
    with listen(1) as listener:
        with pytest.raises(InputError, match="1048588 bytes: more than 1048576"):
            register(listener, 0, 1, text="x" * (1 << 20))
        assert register(listener, 0, 1, text="x" * ((1 << 20) - 12)) == ["x" * ((1 << 20) - 12)]


@pytest.mark.parametrize("frame", [struct.pack("!II", 1 << 30, 0), struct.pack("!II", 1, 0) + b"{"])
def test_a_registration_too_long_or_damaged_is_not_read(frame):
    with listen(2) as listener:
        with connect(listener) as sock:
            deadline = time.monotonic() + SECONDS
            frames.send_frame(sock, {"kind": rendezvous.KIND, "attempt": ATTEMPT, "rank": 0}, 4096, deadline)
            frames.send_all(sock, frame, deadline)
            assert hangs_up(sock)
        with Ranks(listener, 2, [0, 1]) as ranks:  # its place is free
            assert ranks.of[0].result(SECONDS) == ["I am 0", "I am 1"]


def test_a_registration_that_is_none():
    with listen(1) as listener, connect(listener) as sock:
        deadline = time.monotonic() + SECONDS
        frames.send_frame(sock, {"kind": rendezvous.KIND, "attempt": ATTEMPT, "rank": 0}, 4096, deadline)
        frames.send_frame(sock, {"text": 1}, 4096, deadline)
        assert frames.recv_frame(sock, 1 << 20, deadline)["failure"]["error"] == ProtocolError.__name__


@pytest.mark.parametrize(
    ("announced", "sent", "complaint"),
    [
        (5, b"plain", "has no registrations"),
        (None, zlib.compress(b"{}"), "has no registrations"),
        (None, zlib.compress(b'["a", 1]'), "has no registrations"),
        (None, zlib.compress(b'["' + bytes([120]) * (2 << 20) + b'"]'), "has no registrations"),
        (2 << 20, b"", "registrations of 2097152 bytes"),
        (-1, b"", "registrations of -1 bytes"),
    ],
)
def test_an_answer_that_is_none(announced, sent, complaint):
    def answer(sock: socket.socket, hello: dict[str, Any]) -> None:
        with sock:
            deadline = time.monotonic() + SECONDS
            frames.recv_frame(sock, 1 << 20, deadline)
            frames.send_frame(sock, {"packed": len(sent) if announced is None else announced}, 4096, deadline)
            frames.send_all(sock, sent, deadline)
            hangs_up(sock)

    acceptor = Acceptor("127.0.0.1", None, SECRET, answer)
    with closing(acceptor), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (select.select([acceptor.sock], [], [], SECONDS), acceptor.accept()))
        sock = handshake.connect(acceptor.address, SECRET, time.monotonic() + SECONDS)
        with pytest.raises(ProtocolError, match=complaint):
            rendezvous.register(sock, 0, 1, ATTEMPT, "text", SECONDS)


def test_strangers_leave_room_for_the_ranks(monkeypatch):
    monkeypatch.setattr("sparkdl_comm.gang.listen.MAX_HANDSHAKES", 2)
    with listen(1) as listener, ExitStack() as strangers:
        for _ in range(2):  # they say nothing
            strangers.enter_context(socket.create_connection(listener.address))
        assert register(listener, 0, 1) == ["I am 0"]


def task_of(rank: int, world: int, address: tuple[str, int]) -> RankTask:
    conf = CommConf.from_mapping({}, timeout="20s", logs=False)
    spec = SimpleNamespace(driver_address=address, secret=SECRET, attempt_id=ATTEMPT, conf=conf, world=world)
    infos = [SimpleNamespace(address="127.0.0.1:0")] * world
    return RankTask(spec, SimpleNamespace(partitionId=lambda: rank, getTaskInfos=lambda: infos))


def test_a_gang_meets_there():
    with listen(3) as listener:
        tasks = [task_of(rank, 3, listener.address) for rank in range(3)]
        with ThreadPoolExecutor(3) as pool:
            gangs = list(pool.map(lambda task: task.join_gang({"rank": task.rank}), tasks))
            for gang in gangs:
                assert [member.payload for member in gang.members] == [{"rank": rank} for rank in range(3)]
            list(pool.map(RankTask.close, tasks))


def test_a_rank_that_cannot_reach_the_driver():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    with (
        closing(task_of(1, 2, address)) as task,
        pytest.raises(GangError, match=rf"rank 1 cannot reach .* port {address[1]} .*driver\.host.*driver\.port"),
    ):
        task.join_gang({})
