"""What is left of a fit that has ended: processes, descriptors, mappings, sockets, threads, blocks, files. In words."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.faults import processes, wire
from tests.faults.application import Application

#: Seconds that all of it may take to go. Spark needs some to replace an executor, and two to kill a task's Python worker.
SETTLE_SECONDS = 30.0

#: Of each of these an executor has instances only while there is a rank that trains with ps.
_CLASSES = (
    "sparkdl.comm.ps.PsSession",
    "sparkdl.comm.ps.Segment",
    "sparkdl.comm.bridge.BridgeConnection",
    "sparkdl.comm.flow.Fetch",
    "org.apache.spark.storage.SparkdlBlocks$BorrowedBytes",
)
#: A line of the JVM's histogram: number, instances, bytes, class.
_COUNT = re.compile(r"^ *\d+: +(\d+) +\d+ +(\S+)", re.MULTILINE)
#: Job ids of ours in the names of blocks; Spark counts its own from 0.
_BLOCK = re.compile(r"broadcast_\d{18,}")


class Audit:
    """`slots`: of one executor. `daemons`: processes that are no part of the application. To be made while nothing runs."""

    def __init__(self, application: Application, slots: int, daemons: frozenset[int]) -> None:
        self._application, self._slots, self._daemons = application, slots, daemons
        self._count = len(processes.executors(application.name))
        self._jvm_doors = max(_listening(executor) for executor in processes.executors(application.name))
        self._driver_doors = _listening(psutil.Process(application.pid))
        self._temporary = set(self._named_like_ours())
        self._shm = set(os.listdir("/dev/shm"))

    def left(self) -> list[str]:
        """What is still there after SETTLE_SECONDS; returns as soon as there is nothing."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            # What costs more comes last, and only when there is nothing else to wait for.
            found: list[str] = []
            for look in (self._processes, self._files, self._driver, self._instances):
                found = list(_patiently(look))
                if found:
                    break
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def left_without_driver(self) -> list[str]:
        """Likewise, when the driver was killed: of all executors too, and of their Python workers."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            alive = [p for p in processes.of_application(self._application.name) if p.pid not in self._daemons]
            found = [f"{_name(process)} {process.pid} outlives the driver" for process in alive]
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def _processes(self) -> Iterator[str]:
        executors = processes.executors(self._application.name)
        if len(executors) != self._count:
            yield f"{len(executors)} executors instead of {self._count}"
        for executor in executors:
            yield from self._executor(executor)
        known = {executor.pid for executor in executors} | self._daemons | self._workers(executors)
        for process in processes.of_application(self._application.name):
            if processes.holds_segment(process):
                yield f"{_name(process)} {process.pid} maps a segment, or has it open"
            if process.pid in known or process.pid == self._application.pid:
                continue
            if process.name() != "java" or process.ppid() != self._application.pid:
                yield f"{_name(process)} {process.pid}, child of {process.ppid()}, is no part of an idle application"

    def _workers(self, executors: list[psutil.Process]) -> set[int]:
        """pyspark's daemons, and the Python workers that wait for tasks: not more than an executor has slots."""
        known = set()
        for executor in executors:
            for daemon in executor.children():
                workers = daemon.children()
                known |= {daemon.pid, *(worker.pid for worker in workers[: self._slots])}
        return known

    def _executor(self, executor: psutil.Process) -> Iterator[str]:
        who = f"executor {executor.pid}"
        doors = _listening(executor)
        if doors > self._jvm_doors:
            yield f"{who} listens on {doors} ports instead of {self._jvm_doors}"
        bridges = processes.bridge_sockets(executor.pid)
        if len(bridges) != 1:
            yield f"{who} has {len(bridges) - 1} connections of its bridge open"
        threads = [thread for thread in _threads(executor) if thread.startswith("sparkdl-bridge-")]
        if threads:
            yield f"{who} has threads {', '.join(threads)}"
        own = wire.addresses(executor.pid)
        for daemon in executor.children():
            for worker in daemon.children():
                yield from _worker(worker, own)

    def _files(self) -> Iterator[str]:
        application = self._application
        bridges = {
            os.path.dirname(path)
            for e in processes.executors(application.name)
            for path in processes.bridge_sockets(e.pid)
        }
        for path in set(self._named_like_ours()) - self._temporary - bridges - application.abandoned:
            yield f"{path} is left"
        for file in (application.folder / "local").rglob("broadcast_*"):
            if _BLOCK.match(file.name):
                yield f"block {file} is left on disk"
        for file in (application.folder / "local").rglob("sparkdl-checkpoint-*"):
            yield f"{file} is left"
        for name in set(os.listdir("/dev/shm")) - self._shm:
            if name.startswith(("torch", "sparkdl")):
                yield f"/dev/shm/{name} is left"

    def _named_like_ours(self) -> Iterator[str]:
        for path in (self._application.folder / "tmp").iterdir():
            if path.name.startswith(("sparkdl", "torch", "tmp")):
                yield str(path)

    def _driver(self) -> Iterator[str]:
        doors = _listening(psutil.Process(self._application.pid))
        if doors > self._driver_doors:
            yield f"the driver listens on {doors} ports instead of {self._driver_doors}"
        told = self._application.remains(self._slots * self._count)
        if told["tasks"] or told["jobs"]:
            yield f"{told['tasks']} tasks run, of jobs {told['jobs']}"
        for thread in told["threads"]:
            yield f"thread {thread}"

    def _instances(self) -> Iterator[str]:
        """What executors hold that nothing outside shows, such as blocks: objects that survive a garbage collection."""
        for executor in processes.executors(self._application.name):
            jcmd = Path(executor.exe()).parent / "jcmd"
            told = subprocess.run(
                [jcmd, str(executor.pid), "GC.class_histogram"], capture_output=True, text=True, timeout=60, check=True
            )
            counts = {found[2]: int(found[1]) for found in _COUNT.finditer(told.stdout)}
            for name in _CLASSES:
                if counts.get(name):
                    yield f"executor {executor.pid} has {counts[name]} of {name}"


def _worker(worker: psutil.Process, executor: set[wire.Address]) -> Iterator[str]:
    who = f"Python worker {worker.pid}"
    for link in worker.net_connections("tcp"):
        if not link.raddr:
            yield f"{who} listens on {link.laddr}"
        elif wire.plain(link.raddr) not in executor:
            yield f"{who} has a connection {link.laddr} to {link.raddr}, {link.status}"
    for link in worker.net_connections("unix"):
        yield f"{who} has a Unix socket {link.laddr or '(a pair)'}"
    for fd in Path(f"/proc/{worker.pid}/fd").iterdir():
        target = os.readlink(fd)
        if "(deleted)" in target or "eventpoll" in target or target.endswith((".safetensors", ".json")):
            yield f"{who} has {target} open"


def _listening(process: psutil.Process) -> int:
    return sum(link.status == psutil.CONN_LISTEN for link in process.net_connections("tcp"))


def _threads(process: psutil.Process) -> list[str]:
    """Their names as the kernel has them, 15 characters."""
    return [task.joinpath("comm").read_text().strip() for task in Path(f"/proc/{process.pid}/task").iterdir()]


def _name(process: psutil.Process) -> str:
    return process.name() if process.is_running() else "a process"


def _patiently(look: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Looking at a process that ends meanwhile is to be done again."""
    try:
        yield from look()
    except (psutil.Error, OSError, subprocess.CalledProcessError) as error:
        yield f"cannot look: {error}"
