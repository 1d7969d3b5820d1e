"""A gang of threads, without Spark: at a drawn send of one of its connections a byte is another one, or the connection ends.

Each rank ends right or with a typed error, and in time; then no thread, socket or other descriptor is left.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from tests import seeds
from tests.slow import slow_unless
from tests.unit.gang_helpers import AllGather, join, wait_for

WORLD = 3
TIMEOUT = 2.0
#: Every wait of a rank: to join, for the store with its slack, for the others to leave; on a busy machine.
DEADLINE = 30.0
ALGORITHMS = ("ring", "lp", "bml")
QUICK, ALL = 8, 400


class Wire:
    """Spoils the send number `due` of this process; counts all. A tensor's bytes or address, the second buffer of a
    message of a collective, are left alone: what guards these is TCP's checksum."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: str, due: int, pick: float) -> None:
        self.action, self.due, self.pick = action, due, pick
        self.sends = 0
        self.struck = ""
        self._lock = threading.Lock()
        send, sendmsg = socket.socket.send, socket.socket.sendmsg

        def spoilt_send(sock: socket.socket, data: Any, *more: Any) -> int:
            return send(sock, self._spoil(sock, data), *more)

        def spoilt_sendmsg(sock: socket.socket, buffers: Any, *more: Any) -> int:
            whole = len(buffers) == 2
            return sendmsg(sock, [self._spoil(sock, buffers[0]), buffers[1]] if whole else buffers, *more)

        monkeypatch.setattr(socket.socket, "send", spoilt_send, raising=False)
        monkeypatch.setattr(socket.socket, "sendmsg", spoilt_sendmsg, raising=False)

    def _spoil(self, sock: socket.socket, data: Any) -> Any:
        if sock.family != socket.AF_INET or not len(data):
            return data
        with self._lock:
            self.sends += 1
            if self.sends != self.due:
                return data
        self.struck = repr(bytes(data[:60]))
        if self.action == "cut":
            sock.shutdown(socket.SHUT_RDWR)
            return data
        copy = bytearray(data)
        copy[int(self.pick * len(copy))] ^= 1 << int(self.pick * 8)
        return bytes(copy)


def work(gang: Gang, algorithm: str) -> list[Any]:
    """What a rank does with a gang: store, gathers, collectives; its results."""
    results: list[Any] = []
    store = gang.store("work")
    store.set(f"of {gang.rank}", b"%d" % gang.rank * 50)
    results.append([store.get(f"of {rank}") for rank in range(WORLD)])
    conf = CommConf.from_mapping({}, timeout=f"{TIMEOUT:g}s", topology="star:3", rails=("lo",))
    group = CollectiveGroup(gang, algorithm, conf)
    try:
        for number in range(4):
            results.append(gang.all_gather(b"%d" % (gang.rank + number) * 30, TIMEOUT))
            vector = torch.full((1000,), float(gang.rank + number))
            group.start("all_reduce", vector).wait()
            results.append(vector.tolist())
        gang.wait_until_alone(TIMEOUT)
    finally:
        group.close()
    return results


def right() -> list[Any]:
    results: list[Any] = [[b"%d" % rank * 50 for rank in range(WORLD)]]
    for number in range(4):
        results.append([b"%d" % (rank + number) * 30 for rank in range(WORLD)])
        results.append([float(sum(rank + number for rank in range(WORLD)))] * 1000)
    return results


def ranks(algorithm: str) -> list[Any]:
    """By rank: its results, or what it raised; "did not end" after the deadline."""
    gather = AllGather(WORLD)
    ended: list[Any] = ["did not end"] * WORLD

    def one(rank: int) -> None:
        try:
            with join(rank, WORLD, gather.of(rank), timeout=TIMEOUT, rails=("lo",)) as gang:
                try:
                    ended[rank] = work(gang, algorithm)
                except Exception as error:
                    gang.announce_failure(Failure.of(error, rank))
                    raise
        except Exception as error:  # noqa: BLE001 - looked at by the test
            ended[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + DEADLINE
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return ended


def remains() -> Counter[str]:
    """Kinds of descriptors, and names of threads of ours."""
    kinds = Counter(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in _descriptors())
    return kinds + _threads()


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("sparkdl"))


def _descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        if os.path.islink(f"/proc/self/fd/{fd}"):
            yield fd


@pytest.fixture(scope="module")
def sends() -> dict[str, int]:
    """How many there are without a fault, by algorithm."""
    counted = {}
    for algorithm in ALGORITHMS:
        with pytest.MonkeyPatch.context() as patch:
            wire = Wire(patch, "none", 0, 0.0)
            assert ranks(algorithm) == [right()] * WORLD
            counted[algorithm] = wire.sends
    return counted


@pytest.mark.parametrize("seed", slow_unless(seeds.seeds(QUICK).__contains__, seeds.seeds(ALL)))
def test_fault(seed: int, sends: dict[str, int], monkeypatch: pytest.MonkeyPatch, covered: Counter[str]) -> None:
    rng = random.Random(seed)
    algorithm, action = rng.choice(ALGORITHMS), rng.choice(("flip", "cut"))
    assert wait_for(lambda: not _threads()), "threads of the case before are still there"
    before = remains()
    wire = Wire(monkeypatch, action, rng.randint(1, sends[algorithm]), rng.random())
    ended = ranks(algorithm)
    covered.update([f"wire: {action}", f"wire, algorithm: {algorithm}"])
    what = f"{action} of {wire.struck}, send {wire.due} of {sends[algorithm]}, {algorithm}"
    for rank, end in enumerate(ended):
        assert end == right() or isinstance(end, SparkdlCommError), f"rank {rank}: {end!r:.2000}; {what}"
        covered.update([f"wire, ended: {type(end).__name__ if isinstance(end, SparkdlCommError) else 'right'}"])
    assert wait_for(lambda: not remains() - before), f"{remains() - before} is left; {what}"
