"""Processes of a gang: the driver, a rank of the gang, or all other ranks, as threads that do what a gang needs.

    python member.py driver WORLD
    python member.py rank WORLD PORT GATHERS RANK
    python member.py crowd WORLD PORT GATHERS

The driver prints the port it listens on, and ends when a line comes on its standard input. Each prints at last JSON: for each
phase what it used (see :class:`Watch`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.credentials import Credentials
from sparkdl_comm.gang.gang import CONTROL, Gang
from sparkdl_comm.gang.members import Member
from sparkdl_comm.gang.store import StoreService
from sparkdl_comm.job import rendezvous
from sparkdl_comm.job.driver_listener import DriverListener

ATTEMPT = "5e" * 8
SECRET = bytes(range(32))
SECONDS = 200.0
HOST = "127.0.0.1"
#: Bytes that each rank gives in a gathering.
GIVEN = 100
#: Seconds after which one of a thousand threads may ask the others for its turn.
SWITCH = 0.2
#: Bytes of a thread's stack.
STACK = 256 << 10


class CountedSocket(socket.socket):
    """Counts what passes it, of all of this process's sockets together."""

    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def send(self, *arguments: Any) -> int:
        sent = super().send(*arguments)
        self._count(sent, messages=1)
        return sent

    def recv(self, *arguments: Any) -> bytes:
        data = super().recv(*arguments)
        self._count(len(data))
        return data

    def recv_into(self, *arguments: Any) -> int:
        got = super().recv_into(*arguments)
        self._count(got)
        return got

    def _count(self, nbytes: int, messages: int = 0) -> None:
        with self.lock:
            self.counts["bytes"] += nbytes
            self.counts["messages"] += messages


class Watch:
    """What this process uses from now on: ``cpu`` seconds; ``elapsed`` ones; ``memory``, bytes by which the largest that it
    ever had grows; ``bytes`` through its sockets, both ways, and ``messages`` that it sends; at the end, open ``files`` and
    ``threads``."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forgets how large it ever was
        self._before = self._now()

    def told(self) -> dict[str, float]:
        now = self._now()
        used = {name: value - self._before[name] for name, value in now.items()}
        return {**used, "files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}

    @staticmethod
    def _now() -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu": used.ru_utime + used.ru_stime,
            "elapsed": time.perf_counter(),
            "memory": 1024.0 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]),
            **{name: CountedSocket.counts[name] for name in ("bytes", "messages")},
        }


def payload(rank: int) -> dict[str, Any]:
    """What a rank of a fit by `ps` tells the others, about as large."""
    rows = {
        part: {"rows": 1000, "sha256": hashlib.sha256(f"{part} {rank}".encode()).hexdigest()}
        for part in ("training", "validation")
    }
    strategy = {"host": f"10.0.{rank // 250}.{rank % 250}", "port": 30000 + 37 * rank % 30000, "executor": str(rank)}
    return {"data": {**rows, "sealed": False}, "model": "c" * 64, "strategy": strategy}


def registered(rank: int, world: int, port: int, text: str) -> list[str]:
    """As a task of Spark does it."""
    sock = handshake.connect((HOST, port), SECRET, time.monotonic() + SECONDS)
    return rendezvous.register(sock, rank, world, ATTEMPT, json.dumps([rank, text]), SECONDS)


def driver(world: int) -> None:
    with DriverListener(
        HOST, None, SECRET, lambda progress: None, attempt=ATTEMPT, world=world, timeout=SECONDS, bind=HOST
    ) as listener:
        watch = Watch()
        print(listener.address[1], flush=True)
        sys.stdin.readline()
        print(json.dumps({"rendezvous": watch.told()}), flush=True)


def member(world: int, port: int, gathers: int, rank: int) -> None:
    watch = Watch()
    gang = Gang.join(
        rank=rank,
        world=world,
        host=HOST,
        exchange=lambda text: [json.loads(each)[1] for each in registered(rank, world, port, text)],
        secret=SECRET,
        attempt=ATTEMPT,
        payload=payload(rank),
        timeout=SECONDS,
        nic=HOST,
    )
    told = {"join": watch.told()}
    with gang:
        gang.all_gather(b"", SECONDS)  # opens the connections
        watch = Watch()
        for _ in range(gathers):
            if len(gang.all_gather(b"x" * GIVEN, SECONDS)) != world:
                raise SystemExit("not all ranks gave something")
        told["gather"] = watch.told()
        gang.wait_until_alone(SECONDS)
    print(json.dumps(told), flush=True)


def one_of_crowd(rank: int, world: int, port: int, gathers: int) -> None:
    me = Member(rank, HOST, {"eth0": HOST}, port, (), payload(rank))
    [_, text] = json.loads(registered(rank, world, port, json.dumps({"attempt": ATTEMPT, **asdict(me)}))[0])
    first = json.loads(text)
    credentials = Credentials(rank, ATTEMPT, SECRET)

    def dial(root: int, kind: str, deadline: float) -> socket.socket:
        return credentials.dial((first["host"], first["port"]), kind, deadline)

    deadline = time.monotonic() + SECONDS
    with dial(0, CONTROL, deadline) as control:
        frames.recv_frame(control, 1024, deadline)  # everybody is in
        store = StoreService(
            rank, world, serve=lambda *_: None, dial=dial, check=lambda wait: None, clock=time.monotonic
        )
        for turn in range(gathers + 1):
            store.gather(f"all-gather/{turn}", b"x" * GIVEN, SECONDS)
        store.close()
        frames.send_frame(control, {"type": "leave"}, 1024, deadline)


def crowd(world: int, port: int, gathers: int) -> None:
    """All ranks but 0 and 1."""
    failures: list[str] = []

    def one(rank: int) -> None:
        try:
            one_of_crowd(rank, world, port, gathers)
        except Exception as error:  # noqa: BLE001 - told, and the benchmark fails
            failures.append(f"rank {rank}: {error!r}")

    sys.setswitchinterval(SWITCH)
    watch = Watch()
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2, world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"{len(failures)} ranks failed, first {failures[0]}")
    print(json.dumps({"all": watch.told()}), flush=True)


if __name__ == "__main__":
    socket.socket = CountedSocket
    threading.stack_size(STACK)
    role, world, *rest = sys.argv[1], *map(int, sys.argv[2:])
    {"driver": driver, "rank": member, "crowd": crowd}[role](world, *rest)
