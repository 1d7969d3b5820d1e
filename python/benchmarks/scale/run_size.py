"""Cost of a gang at its size: the driver, rank 0 and any other rank, with 8 to 1,024 ranks on the loopback interface.

    python python/benchmarks scale/size --json

The driver's listener with its rendezvous, rank 0 with control connections and key-value store, and rank 1 each have a
process. The other ranks are threads of one process, which register, connect and gather like ranks, but have no Gang.

Rows have processor seconds (as `seconds`), peak memory, bytes through sockets, messages and open files: from the start
until all ranks are in, and for each gathering of 100 bytes per rank. A fit has one such gathering per epoch. During
training only rank 0 talks to the driver: a heartbeat each second, and progress at most five times a second.

Verified: all ranks are in, and each gathering had the contributions of all.

This file is also the program of each process (see :func:`play`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.command import Note
from lab.bench import Row

from sparkdl_comm.errors import LabError
from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.gang import CONTROL, Gang
from sparkdl_comm.gang.handshake import Credentials
from sparkdl_comm.gang.members import Member
from sparkdl_comm.gang.store import StoreService
from sparkdl_comm.job import rendezvous
from sparkdl_comm.job.driver_listener import DriverListener

#: Numbers of ranks, gatherings, and seconds for one gang.
WORLDS, GATHERINGS, TIMEOUT = (8, 64, 512, 1024), 5, 240.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    worlds, gatherings = ((4, 8), 2) if options.quick else (WORLDS, GATHERINGS)
    for world in worlds:
        driver, first, other = _run(world, gatherings)
        yield _row("rendezvous", "driver", world, driver["rendezvous"])
        for algorithm, used in (("rank 0", first), ("rank 1", other)):
            yield _row("join", algorithm, world, used["join"])
            each = {name: used["gather"][name] / gatherings for name in ("cpu", "bytes", "messages")}
            yield _row("gather", algorithm, world, {**used["gather"], **each})


def _run(world: int, gatherings: int) -> list[dict[str, Any]]:
    """Run a gang. Return the usage of the driver, of rank 0 and of rank 1."""
    with contextlib.ExitStack() as started:

        def start(*arguments: object) -> subprocess.Popen[str]:
            command = [sys.executable, __file__, *map(str, arguments)]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = started.enter_context(subprocess.Popen(command, text=True, **pipes))
            started.callback(process.kill)
            return process

        driver = start("driver", world)
        port = int(driver.stdout.readline())
        crowd = start("crowd", world, port, gatherings)
        ranks = [start("rank", world, port, gatherings, rank) for rank in (0, 1)]
        _, *used = [_result(process) for process in (crowd, *ranks)]
        return [_result(driver, "end\n"), *used]


def _result(process: subprocess.Popen[str], last: str | None = None) -> dict[str, Any]:
    """Send a process its ``last`` input. Return the JSON that it prints.

    :raises LabError: the process failed, or did not end in time.
    """
    try:
        out, err = process.communicate(last, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise LabError(f"{process.args} did not end within {TIMEOUT:g} s") from None
    if process.returncode:
        raise LabError(f"{process.args} ended with status {process.returncode}: {err[-1000:]}")
    return dict(json.loads(out))


def _row(case: str, algorithm: str, world: int, used: Mapping[str, float]) -> Row:
    return Row(
        suite="size",
        case=case,
        algorithm=algorithm,
        world=world,
        bytes=round(used["bytes"]),
        samples=[used["cpu"]],
        verified=True,
        extra={name: used[name] for name in ("memory", "messages", "files")},
    )


# --- The processes of a gang ------------------------------------------------------------------------------------------

ATTEMPT = "5e" * 8
SECRET = bytes(range(32))
SECONDS = 200.0
HOST = "127.0.0.1"
#: Bytes of each rank in a gathering.
GIVEN = 100
#: Interpreter's switch interval, seconds, and bytes of a thread's stack, for a thousand threads.
SWITCH, STACK = 0.2, 256 << 10


class CountedSocket(socket.socket):
    """Socket that counts the bytes and the sent messages of all of this process's sockets together."""

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


class Usage:
    """Resources that this process uses from now on.

    ``cpu`` seconds; ``memory``, bytes by which its peak grows; ``bytes`` through its sockets, both ways; sent ``messages``;
    and, at the end, open ``files``.
    """

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._before = self._now()

    def so_far(self) -> dict[str, float]:
        used = {name: value - self._before[name] for name, value in self._now().items()}
        return {**used, "files": len(os.listdir("/proc/self/fd"))}

    @staticmethod
    def _now() -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu": used.ru_utime + used.ru_stime,
            "memory": 1024.0 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]),
            **{name: CountedSocket.counts[name] for name in ("bytes", "messages")},
        }


def payload(rank: int) -> dict[str, Any]:
    """Return a payload like that of a rank of a fit by `ps`, of about its size."""
    rows = {
        part: {"rows": 1000, "sha256": hashlib.sha256(f"{part} {rank}".encode()).hexdigest()}
        for part in ("training", "validation")
    }
    strategy = {"host": f"10.0.{rank // 250}.{rank % 250}", "port": 30000 + 37 * rank % 30000, "executor": str(rank)}
    return {"data": {**rows, "sealed": False}, "model": "c" * 64, "strategy": strategy}


def register(rank: int, world: int, port: int, text: str) -> list[str]:
    """Register like a task of Spark. Return the texts of all ranks."""
    sock = handshake.connect((HOST, port), SECRET, time.monotonic() + SECONDS)
    return rendezvous.register(sock, rank, world, ATTEMPT, json.dumps([rank, text]), SECONDS)


def driver(world: int) -> None:
    with DriverListener(
        HOST, None, SECRET, lambda progress: None, attempt=ATTEMPT, world=world, timeout=SECONDS, bind=HOST
    ) as listener:
        usage = Usage()
        print(listener.address[1], flush=True)
        sys.stdin.readline()
        print(json.dumps({"rendezvous": usage.so_far()}), flush=True)


def member(world: int, port: int, gatherings: int, rank: int) -> None:
    usage = Usage()
    gang = Gang.join(
        rank=rank,
        world=world,
        host=HOST,
        exchange=lambda text: [json.loads(each)[1] for each in register(rank, world, port, text)],
        secret=SECRET,
        attempt=ATTEMPT,
        payload=payload(rank),
        timeout=SECONDS,
        nic=HOST,
    )
    used = {"join": usage.so_far()}
    with gang:
        gang.all_gather(b"", SECONDS)  # opens the connections
        usage = Usage()
        for _ in range(gatherings):
            if len(gang.all_gather(b"x" * GIVEN, SECONDS)) != world:
                raise SystemExit("a gathering has not the contributions of all ranks")
        used["gather"] = usage.so_far()
        gang.wait_until_alone(SECONDS)
    print(json.dumps(used), flush=True)


def one_of_crowd(rank: int, world: int, port: int, gatherings: int) -> None:
    me = Member(rank, HOST, {"eth0": HOST}, port, (), payload(rank))
    [_, text] = json.loads(register(rank, world, port, json.dumps({"attempt": ATTEMPT, **asdict(me)}))[0])
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
        for turn in range(gatherings + 1):
            store.gather(f"all-gather/{turn}", b"x" * GIVEN, SECONDS)
        store.close()
        frames.send_frame(control, {"type": "leave"}, 1024, deadline)


def crowd(world: int, port: int, gatherings: int) -> None:
    """Run all ranks but 0 and 1."""
    failures: list[str] = []

    def one(rank: int) -> None:
        try:
            one_of_crowd(rank, world, port, gatherings)
        except Exception as error:  # noqa: BLE001 - reported, and the benchmark fails
            failures.append(f"rank {rank}: {error!r}")

    sys.setswitchinterval(SWITCH)
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2, world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"{len(failures)} ranks failed, first {failures[0]}")
    print("{}", flush=True)


def play(role: str, *numbers: int) -> None:
    """Do what a process of a gang does. At the end it prints JSON: its usage in each phase (see :class:`Usage`).

    - ``driver WORLD`` prints its port, and ends when it reads a line on its standard input.
    - ``rank WORLD PORT GATHERINGS RANK`` is one rank.
    - ``crowd WORLD PORT GATHERINGS`` has all ranks but 0 and 1, as threads that do what a gang needs.
    """
    socket.socket = CountedSocket
    threading.stack_size(STACK)
    {"driver": driver, "rank": member, "crowd": crowd}[role](*numbers)


if __name__ == "__main__":
    play(sys.argv[1], *map(int, sys.argv[2:]))
