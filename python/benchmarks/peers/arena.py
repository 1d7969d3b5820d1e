"""Emulated network for all peers of a run, with Spark standalone on it."""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab import Lab
from lab.bench import Row, allreduce_seconds, broadcast_seconds, per_gigabyte
from lab.spark import SparkCluster

from sparkdl_comm.errors import LabError

#: Folder of the programs that run on the hosts.
PROGRAMS = Path(__file__).parent


class NotInstalledError(Exception):
    """A peer is not installed. The message says what to install."""


class Arena:
    """Context with a lab and a Spark cluster, which are made at first use and removed at its end.

    :param options: options of the benchmark `peers`.
    :param folder: folder for the programs' files.
    """

    def __init__(self, options: Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    @functools.cached_property
    def lab(self) -> Lab:
        return self._undo.enter_context(Lab(self.options.topology))

    @functools.cached_property
    def spark(self) -> SparkCluster:
        return self._undo.enter_context(self.lab.spark(memory=self.options.memory))

    @contextlib.contextmanager
    def crossing(self, necessary: int) -> Iterator[None]:
        """Check by the links' counters that the body's traffic crosses the links.

        :param necessary: bytes that every host but the root must receive, by any algorithm.
        :raises LabError: a host received less.
        """
        before = self.lab.counters()
        yield
        after = self.lab.counters()
        for host in self.lab.topology.hosts[1:]:
            received = after[host.index, 0].received - before[host.index, 0].received
            if received < necessary:
                raise LabError(f"host {host.index} received {received:,} bytes over its link, and needs {necessary:,}")

    def rows(self, algorithm: str, output: str, installed: Mapping[str, str], *, linked: bool = True) -> Iterator[Row]:
        """Yield a row for each JSON line of a program's output.

        :param installed: versions of the measured packages.
        :param linked: the ranks used the topology's links.
        """
        topology, rate = self.options.topology, self.options.rate
        for line in filter(None, output.splitlines()):
            result: dict[str, Any] = json.loads(line)
            nbytes = result["bytes"]
            extra: dict[str, Any] = {}
            if "cpu_seconds" in result:
                extra = {"cpu_seconds": result["cpu_seconds"], "calls": self.options.calls}
            if extra and result["case"] == "allreduce" and not linked:
                seconds = statistics.median(result["samples"])
                extra |= per_gigabyte(topology.world, nbytes, seconds, result["cpu_seconds"])
            if result["case"] in ("broadcast", "reduce"):
                theory = broadcast_seconds(nbytes, rate)
            else:
                theory = allreduce_seconds(len(topology.hosts), nbytes, rate)
            yield Row(
                suite="peers",
                case=result["case"],
                algorithm=algorithm,
                topology=topology.text if linked else "loopback",
                rate_mbit=rate if linked else None,
                world=topology.world,
                bytes=nbytes,
                samples=result["samples"],
                theory_seconds=theory if linked else None,
                verified=result["verified"],
                versions=installed,
                extra=extra,
            )
