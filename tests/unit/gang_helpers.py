"""Gangs on loopback without Spark: of threads (quick) and of processes (can be killed)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from tests.forkserver import context

SECRET = bytes(range(32))
SECONDS = 20.0  # generous: for what takes milliseconds


def primary(rank: int, message: str = "boom") -> Failure:
    return Failure.of(ValueError(message), rank, 3, "backward")


def secondary(rank: int) -> Failure:
    return Failure.of(RuntimeError("Connection closed by peer [127.0.0.1]:1"), rank, 3, "all-reduce")


class AllGather:
    """The exchange of a gang, for threads; counts its calls."""

    def __init__(self, world: int) -> None:
        self.texts = [""] * world
        self.calls = [0] * world
        self.barrier = threading.Barrier(world)

    def of(self, rank: int) -> Callable[[str], list[str]]:
        def exchange(text: str) -> list[str]:
            self.calls[rank] += 1
            self.texts[rank] = text
            self.barrier.wait(SECONDS)
            return list(self.texts)

        return exchange


def join(rank: int, world: int, exchange: Callable[[str], list[str]], **changes: Any) -> Gang:
    settings: dict[str, Any] = {
        "rank": rank,
        "world": world,
        "host": "127.0.0.1",
        "exchange": exchange,
        "secret": SECRET,
        "attempt": "app-1/0",
        "payload": {"rows": 10 * rank},
        "timeout": SECONDS,
        "nic": None,
        "ports": None,
    }
    return Gang.join(**{**settings, **changes})


def join_all(
    world: int, changes: dict[int, dict[str, Any]] | None = None, gather: AllGather | None = None
) -> list[Gang | BaseException]:
    """All ranks, each in a thread: the gang, or what `join` raised. `changes`: of settings, by rank."""
    gather = gather or AllGather(world)
    results: list[Gang | BaseException] = [RuntimeError("did not end")] * world

    def one(rank: int) -> None:
        try:
            results[rank] = join(rank, world, gather.of(rank), **(changes or {}).get(rank, {}))
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            results[rank] = exc

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return results


@contextmanager
def gang_of(world: int, **changes: Any):
    gangs = join_all(world, dict.fromkeys(range(world), changes))
    try:
        for gang in gangs:
            if isinstance(gang, BaseException):
                raise gang
        yield gangs
    finally:
        for gang in gangs:
            if isinstance(gang, Gang):
                gang.close()


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """`condition()` as soon as it is true, else as it is after `seconds`."""
    until = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return value


def file_exchange(directory: Path, rank: int, world: int) -> Callable[[str], list[str]]:
    """The exchange of a gang, for processes, by files."""

    def exchange(text: str) -> list[str]:
        (directory / f"{rank}.new").write_text(text)
        (directory / f"{rank}.new").rename(directory / f"{rank}.json")
        paths = [directory / f"{other}.json" for other in range(world)]
        assert wait_for(lambda: all(path.exists() for path in paths))
        return [path.read_text() for path in paths]

    return exchange


def _process(rank: int, world: int, directory: Path, body: Callable[..., Any], pipe: Connection) -> None:
    gang = join(rank, world, file_exchange(directory, rank, world))
    pipe.send("in")
    body(gang, pipe)


class Crew:
    """`world` processes, each running `body(gang, pipe)` after it has joined."""

    def __init__(self, world: int, directory: Path, body: Callable[..., Any]) -> None:
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_process, args=(rank, world, directory, body, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Crew:
        for rank in range(len(self.pipes)):
            assert self.hear(rank, 60.0) == "in"
        return self

    def hear(self, rank: int, seconds: float = SECONDS) -> Any:
        """What `rank` sends; fails the test if nothing comes."""
        assert self.pipes[rank].poll(seconds), f"rank {rank} said nothing for {seconds} s"
        return self.pipes[rank].recv()

    def __exit__(self, *exc: object) -> None:
        for process in self.processes:
            process.kill()
            process.join(SECONDS)


def hangs_up(sock: socket.socket) -> bool:
    """True if the other side closes, with or without a reset (which unread bytes of ours cause)."""
    sock.settimeout(SECONDS)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
