"""Ranks as processes of the driver's own machine instead of Spark tasks: ``local_mode`` of CommDistributor.

1. The driver starts one Python process per rank. It sends each its spec through a socket pair, which no other process
   can reach.
2. A process ends with its report, or with the text of the exception that it raised. When the driver goes away, so do
   the processes.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import IO, Any

import cloudpickle

from sparkdl_comm.errors import RankLostError
from sparkdl_comm.gang.failure import MAX_JSON
from sparkdl_comm.gang.frames import FrameBuffer, recv_exact, send_all, send_frame
from sparkdl_comm.job.driver_listener import CHECK_SECONDS, LOCAL_HOST
from sparkdl_comm.job.function import FunctionSpec, run_function
from sparkdl_comm.job.output import MAX_LINES
from sparkdl_comm.job.task import RankTask

_MAX_FRAME = 2 * MAX_JSON
#: Seconds that a process waits for its spec. The driver sends it at once.
_START_SECONDS = 60.0
#: Seconds that the other ranks have to end by themselves after one has failed.
_GRACE_SECONDS = 10.0


@dataclass
class _Process:
    """A rank's process. ``outcome``: its last message, a report or the text of its exception; empty if it died without
    one.
    """

    rank: int
    process: subprocess.Popen[bytes]
    sock: socket.socket
    output: IO[bytes]
    frames: FrameBuffer
    outcome: dict[str, Any] | None = None


def run_locally(spec: FunctionSpec, check: Callable[[], None]) -> list[str]:
    """Run ``spec.world`` ranks at once, and return their reports.

    :param check: called every second. If it raises, the ranks are killed.
    :raises RuntimeError: a rank failed. Contains its failure, like the exception of a Spark task.
    :raises RankLostError: a rank's process died without a message.
    """
    with _start_all(spec) as ranks, selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.sock, selectors.EVENT_READ, rank)
        give_up_at: float | None = None
        while any(rank.outcome is None for rank in ranks):
            remaining = CHECK_SECONDS if give_up_at is None else give_up_at - time.monotonic()
            if remaining <= 0:
                break
            check()
            for key, _ in selector.select(min(remaining, CHECK_SECONDS)):
                _receive(key.data)
                if key.data.outcome is not None:
                    selector.unregister(key.fileobj)
            if give_up_at is None and any(rank.outcome is not None and "report" not in rank.outcome for rank in ranks):
                give_up_at = time.monotonic() + _GRACE_SECONDS
        errors = [rank.outcome["error"] for rank in ranks if rank.outcome is not None and "error" in rank.outcome]
        if errors:
            raise RuntimeError("\n".join(errors))
        for rank in ranks:
            if rank.outcome is None or "report" not in rank.outcome:
                raise _lost_error(rank)
        return [rank.outcome["report"] for rank in ranks if rank.outcome is not None]


@contextmanager
def _start_all(spec: FunctionSpec) -> Iterator[list[_Process]]:
    pickled = cloudpickle.dumps(spec)
    with ExitStack() as stack:
        ranks = [_start(number, stack) for number in range(spec.world)]
        for rank in ranks:
            deadline = time.monotonic() + spec.conf.timeout
            send_all(rank.sock, len(pickled).to_bytes(8, "big") + pickled, deadline)
        yield ranks


def _start(number: int, stack: ExitStack) -> _Process:
    """Start a rank's process, which ends with ``stack`` at the latest."""
    # So that it can import all that the driver can.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the stack
    driver_end, rank_end = socket.socketpair()
    with rank_end:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(number), str(rank_end.fileno())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[rank_end.fileno()],
        )
    stack.callback(process.wait)
    rank = _Process(number, process, driver_end, output, FrameBuffer(_MAX_FRAME))
    stack.callback(_stop, rank)
    driver_end.setblocking(False)
    return rank


def _stop(rank: _Process) -> None:
    """Kill the process if it has not reported. Otherwise closing its socket ends it."""
    if rank.outcome is None:
        rank.process.kill()
    rank.sock.close()


def _receive(rank: _Process) -> None:
    try:
        data = rank.sock.recv(1 << 16)
    except ConnectionError:
        data = b""
    if not data:
        rank.outcome = rank.outcome or {}
        return
    for message in rank.frames.feed(data):
        rank.outcome = message


def _lost_error(rank: _Process) -> RankLostError:
    size = rank.output.seek(0, os.SEEK_END)
    rank.output.seek(max(0, size - MAX_JSON))
    tail = rank.output.read().decode(errors="backslashreplace").splitlines()[-MAX_LINES:]
    code = rank.process.poll()
    ending = "did not end" if code is None else f"ended with status {code}"
    return RankLostError(
        f"the process of rank {rank.rank} {ending} without a report", rank=rank.rank, log_tail="\n".join(tail)
    )


class LocalContext:
    """Substitute for Spark's BarrierTaskContext in the process of a local rank."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world

    def partitionId(self) -> int:
        return self._rank

    def getTaskInfos(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(address=f"{LOCAL_HOST}:0")] * self._world

    def resources(self) -> dict[str, Any]:
        return {}


def _exit_with_driver(sock: socket.socket) -> None:
    """Exit this process when the driver closes its end of the socket, or is gone."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


def main(rank: int, fd: int) -> None:
    """Run one rank. ``fd``: file descriptor of its socket to the driver."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    deadline = time.monotonic() + _START_SECONDS
    size = int.from_bytes(recv_exact(sock, 8, deadline), "big")
    spec: FunctionSpec = cloudpickle.loads(recv_exact(sock, size, deadline))
    threading.Thread(target=_exit_with_driver, args=(sock,), name="sparkdl-end", daemon=True).start()
    timeout = spec.conf.timeout
    task = RankTask(spec, LocalContext(rank, spec.world))
    try:
        report = run_function(spec, task, iter(()))
    except RuntimeError as failed:
        send_frame(sock, {"error": str(failed)}, _MAX_FRAME, time.monotonic() + timeout)
    else:
        send_frame(sock, {"report": report}, _MAX_FRAME, time.monotonic() + timeout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
