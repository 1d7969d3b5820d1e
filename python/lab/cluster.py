"""Clusters of hosts. Their programs are started, watched, and killed as process groups."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.layout import CONTROL, HostId, RailId
from lab.place import Place
from lab.processes import GRACE_SECONDS, kill_group
from sparkdl_comm.errors import ConfError, DeadlineError, RankFailedError
from sparkdl_comm.topology import Topology

if TYPE_CHECKING:
    from lab.spark import SparkCluster

_TAIL = 2000


@dataclass(frozen=True)
class Result:
    """End of a rank's program. ``returncode`` is subprocess's; ``seconds`` are those from its start to its end."""

    rank: int
    returncode: int
    stdout: str
    stderr: str
    seconds: float


class Cluster(abc.ABC):
    """Hosts of a topology, and the head, from which programs are launched."""

    topology: Topology

    _started: list[subprocess.Popen[Any]]

    @abc.abstractmethod
    def address(self, host: HostId, rail: RailId = 0) -> str:
        """Return the IPv4 address of the NIC of a host, or of the head. Rail "control" is the unshaped network."""

    @abc.abstractmethod
    def command(self, host: HostId, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a host."""

    @abc.abstractmethod
    def _port(self) -> int:
        """Return a port that is free on all hosts."""

    def popen(self, host: HostId, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host, in a new process group. The end of the cluster kills it with its children.

        :param options: of subprocess.Popen, but cwd and start_new_session.
        """
        process = subprocess.Popen(self.command(host, argv), start_new_session=True, **options)
        self._started = [p for p in self._started if p.poll() is None] + [process]
        return process

    def places(self) -> list[Place]:
        """Return the place of each rank. All have the same fresh port."""
        hosts = [self.topology.host_of(rank).index for rank in range(self.topology.world)]
        peers = tuple(tuple(self.address(host, rail) for rail in range(self.topology.rails)) for host in hosts)
        port = self._port()
        return [Place(rank, self.topology, peers, self.address(host, CONTROL), port) for rank, host in enumerate(hosts)]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> list[Result]:
        """Run a program as every rank at once, and wait for all. Its environment has its :class:`Place`.

        :param timeout: seconds for all of them.
        :param env: added to this process's environment.
        :param check: raise if a rank fails. Otherwise its result says so.
        :return: results by rank. No process of the ranks' groups is left, also after an error.
        :raises DeadlineError: some did not end in time. The text names them, and has their last output.
        :raises RankFailedError: a rank's exit status was not 0. The others had GRACE_SECONDS to end.
        """
        environment = {**os.environ, **(env or {})}
        programs = [
            (self.topology.host_of(place.rank).index, argv, {**environment, **place.environment()})
            for place in self.places()
        ]
        return self.run_each(programs, timeout=timeout, check=check)

    def run_each(
        self,
        programs: Sequence[tuple[HostId, Sequence[str], Mapping[str, str]]],
        *,
        timeout: float,
        check: bool = True,
    ) -> list[Result]:
        """Run programs as :meth:`run` does. Each has a host, a command and a whole environment. Ranks count from 0."""
        if not timeout > 0:
            raise ConfError(f"timeout={timeout}: must be more than 0 seconds")
        with tempfile.TemporaryDirectory(prefix="sparkdl-lab-") as folder, contextlib.ExitStack() as files:
            begun = time.monotonic()
            processes: list[subprocess.Popen[Any]] = []
            try:
                for rank, (host, argv, environment) in enumerate(programs):
                    out, err = (files.enter_context(open(f"{folder}/{rank}.{end}", "wb")) for end in ("out", "err"))
                    processes.append(
                        self.popen(host, argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                    )
                ended = _wait(processes, begun + timeout, check)
            finally:
                for process in processes:
                    kill_group(process)

            def text(rank: int, end: str) -> str:
                return Path(folder, f"{rank}.{end}").read_text(errors="replace")

            failed = [rank for rank in ended if processes[rank].returncode != 0]
            if check and failed:
                rank = min(failed, key=ended.__getitem__)
                status = processes[rank].returncode
                raise RankFailedError(
                    rank=rank,
                    step=None,
                    phase="its program",
                    error=f"exit status {status}" if status >= 0 else signal.Signals(-status).name,
                    error_message=text(rank, "err")[-_TAIL:].strip(),
                )
            late = [rank for rank in range(len(processes)) if rank not in ended]
            if late:
                said = text(late[0], "err")[-_TAIL:].strip() or "nothing on stderr"
                raise DeadlineError(
                    f"ranks {', '.join(map(str, late))} of {len(processes)} did not end within timeout={timeout:g} s and"
                    f" were killed. Rank {late[0]} wrote last: {said}"
                )
            return [
                Result(rank, process.returncode, text(rank, "out"), text(rank, "err"), ended[rank] - begun)
                for rank, process in enumerate(processes)
            ]

    def spark(self, **settings: Any) -> contextlib.AbstractContextManager[SparkCluster]:
        """Return a Spark standalone cluster on the hosts. ``settings``: see :class:`~lab.spark.SparkCluster`."""
        from lab.spark import SparkCluster

        return SparkCluster(self, **settings)

    def _kill_started(self) -> None:
        for process in self._started:
            kill_group(process)
        self._started = []


def _wait(processes: list[subprocess.Popen[Any]], deadline: float, stop_at_failure: bool) -> dict[int, float]:
    """Return the monotonic time at which each rank ended. Ranks that outlast the deadline, or a failure, are left out."""
    ended: dict[int, float] = {}
    for now in _ticks():
        for rank, process in enumerate(processes):
            if rank not in ended and process.poll() is not None:
                ended[rank] = now
                if stop_at_failure and process.returncode:
                    deadline = min(deadline, now + GRACE_SECONDS)
        if len(ended) == len(processes) or now >= deadline:
            break
    return ended


def _ticks() -> Iterator[float]:
    while True:
        yield time.monotonic()
        time.sleep(0.01)
