"""Barrier task of one rank: the steps that training and a user's function share.

A rank meets the others at the driver's listener, and joins the gang. Rank 0 stays connected to the driver. A rank that
fails reports why.
"""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import GangError, RankLostError
from sparkdl_comm.gang import handshake
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.handshake import Address
from sparkdl_comm.job import rendezvous
from sparkdl_comm.job.driver_client import DriverClient
from sparkdl_comm.job.output import OutputCapture

#: Spark's limit of the address space of a Python worker, and its allowance for memory outside of the JVM's heap.
ADDRESS_SPACE_KEY, OVERHEAD_KEY = "spark.executor.pyspark.memory", "spark.executor.memoryOverhead"
#: Message of an allocation that failed.
_REFUSED = re.compile(
    r"MemoryError|(?:can't|cannot|not|unable to) (?:enough memory|allocate)|can't start new thread", re.I
)

#: Schema of the one row that the function of a rank's task returns.
RANK_SCHEMA = "rank int, report string"
#: Prefix of the report of a task that raised :class:`RowsGoneError`. The error's message follows.
ROWS_GONE_PREFIX = "rows gone"
#: Phase in which a user's function is unpickled.
LOADING_PHASE = "loading"
#: Function of a rank's task: takes its rows, returns the row of :data:`RANK_SCHEMA`.
RankFn: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class GangSpec(Protocol):
    """Parameters of a gang that each of its ranks needs; see :class:`sparkdl_comm.train.spec.TrainSpec`."""

    @property
    def world(self) -> int: ...
    @property
    def conf(self) -> CommConf: ...
    @property
    def device(self) -> str: ...
    @property
    def attempt_id(self) -> str: ...
    @property
    def secret(self) -> bytes: ...
    @property
    def driver_address(self) -> Address: ...


class RowsGoneError(Exception):
    """Signal, raised on all ranks, that a named cache is not complete on the hosts where this gang's tasks run.

    Its message says what kept a task from reading its disk, or is empty.
    """


class RankTask:
    """Task of one rank. Close it: it captures the process's output.

    ``context``: Spark's BarrierTaskContext. ``partition``: index of the Spark partition. ``rank``: the same, unless the
    task chooses another by :meth:`choose_rank`.
    """

    def __init__(self, spec: GangSpec, context: Any) -> None:
        self._spec = spec
        self._context = context
        self.partition: int = context.partitionId()
        self._choice: tuple[int | None, str] = self.partition, ""
        self._read_error = ""
        self.rank = self.partition
        self.gang: Gang | None = None
        self._driver: DriverClient | None = None
        self._output = OutputCapture()

    def choose_rank(self, rank: int | None, set_id: str = "", read_error: str = "") -> None:
        """Choose the rank whose rows the task has found, before the gang is joined.

        ``join_gang`` raises :class:`RowsGoneError` on all ranks if a task has no rank (None), if two have the same, or
        if their set ids differ. ``read_error``: the error that kept the task from reading, empty if there was none.
        """
        self._choice, self._read_error = (rank, set_id), read_error
        self.rank = self.partition if rank is None else rank

    def report(self, report: str) -> pa.RecordBatch:
        """Return the row with which the task ends."""
        return pa.RecordBatch.from_arrays([pa.array([self.rank], pa.int32()), pa.array([report])], ["rank", "report"])

    def device(self) -> torch.device:
        """Return the device of this rank: the CPU, or the task's GPU (see :func:`sparkdl_comm.job.gpu.task_gpu`)."""
        if self._spec.device == "cpu":
            return torch.device("cpu")
        from sparkdl_comm.job.gpu import task_gpu

        return task_gpu(self._context.resources(), self.index_on_host())

    def index_on_host(self) -> int:
        """Return the index of the task among the tasks of its stage on the same host, from 0."""
        return self.local_partitions().index(self.partition)

    def local_partitions(self) -> list[int]:
        """Return the partitions of the tasks of this stage on the same host, in order."""
        hosts = self._hosts()
        return [index for index, host in enumerate(hosts) if host == hosts[self.partition]]

    def _hosts(self) -> list[str]:
        return [info.address.rsplit(":", 1)[0] for info in self._context.getTaskInfos()]

    def join_gang(self, payload: dict[str, Any]) -> Gang:
        """Meet the other ranks, and return the gang.

        :param payload: what the other ranks learn about this one, as JSON.
        :raises RowsGoneError: see :meth:`choose_rank`.
        """
        spec, conf = self._spec, self._spec.conf
        self.gang = Gang.join(
            rank=self.rank,
            world=spec.world,
            host=self._hosts()[self.partition],
            exchange=self._exchange,
            secret=spec.secret,
            attempt=spec.attempt_id,
            payload=payload,
            timeout=conf.timeout,
            nic=conf.nic or None,
            rails=conf.rails,
            ports=range(conf.ports[0], conf.ports[1] + 1) if conf.ports[0] else None,
        )
        return self.gang

    def connect_driver(self, stack: ExitStack) -> DriverClient | None:
        """Return rank 0's connection to the driver, which ``stack`` closes. None on other ranks."""
        if self.rank != 0:
            return None
        spec = self._spec
        with self._resolve_driver() as address:
            driver = DriverClient.connect(address, spec.secret, spec.attempt_id, spec.conf.timeout)
        stack.callback(driver.close)
        driver.watch_driver(self._on_driver_gone)
        self._driver = driver
        if spec.conf.logs:
            self._output.forward(driver.send_lines)
            stack.callback(self._output.end_forward)
        return driver

    def wait_for_others(self, seconds: float) -> None:
        """On rank 0, wait at most ``seconds`` for the other ranks to leave the gang, and tell the driver if they
        have.

        From then on only the driver watches them. Returns at once on other ranks.

        :raises GangError: the gang's failure, if it has failed.
        """
        if self.gang is not None and self.gang.wait_until_alone(seconds) and self._driver is not None:
            self._driver.report_all_left()

    def _exchange(self, text: str) -> list[str]:
        """Return every rank's text, by rank, from the rendezvous at the driver."""
        spec = self._spec
        with self._resolve_driver() as address:
            sock = handshake.connect(address, spec.secret, time.monotonic() + spec.conf.timeout)
        text = json.dumps([*self._choice, text])
        replies = rendezvous.register(sock, self.partition, spec.world, spec.attempt_id, text, spec.conf.timeout)
        choices = [json.loads(each) for each in replies]
        texts = {rank: each for rank, _, each in choices}
        if texts.keys() != set(range(spec.world)) or len({set_id for _, set_id, _ in choices}) > 1:
            raise RowsGoneError(self._read_error)
        return [texts[rank] for rank in range(spec.world)]

    @contextmanager
    def _resolve_driver(self) -> Iterator[Address]:
        """Yield the numeric address of the driver's listener. A connection error in the context says which settings to
        change.
        """
        host, port = self._spec.driver_address
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
            yield str(address[0]), port
        except (GangError, OSError) as exc:
            raise GangError(
                f"rank {self.rank} cannot reach the driver at {host} port {port} ({exc}). Set spark.sparkdl.comm.driver.host"
                " (or spark.driver.host) to a name or address of the driver that executors reach, and"
                " spark.sparkdl.comm.driver.port to an open port. Behind NAT or in a container, forward that port, and set"
                " spark.driver.bindAddress to the address on which the driver listens"
            ) from exc

    def _on_driver_gone(self) -> None:
        """Stop the ranks, so that their slots are free: nobody would receive the trained tensors."""
        lost = RankLostError("rank 0 lost its connection to the driver: the driver ended, or gave up this run", rank=0)
        if self.gang is not None:
            self.gang.announce_failure(Failure.of(lost, 0, phase="the connection to the driver", secondary=False))

    def announce_failure(self, failure: Failure) -> RuntimeError:
        """Report a failure to the other ranks and the driver. Return the error to raise, with the gang's *first*
        failure inside.

        Call this before any connection is closed. Otherwise the other ranks take the closing for the failure.
        """
        if failure.rank == self.rank and not failure.log:
            message = explain_limit(failure.error, failure.message)
            failure = dataclasses.replace(failure, message=message, log=self._output.tail())
        if self.gang is not None:
            self.gang.announce_failure(failure)
            failure = self.gang.failure() or failure
        if self._driver is not None:
            self._driver.report_failure(failure)
        return RuntimeError(failure.embed())

    def close(self) -> None:
        self._output.close()
        if self.gang is not None:
            self.gang.close()


def explain_limit(error: str, message: str) -> str:
    """Return the ``message`` of an ``error`` in this process. If Spark's limit of the address space caused it, add
    that.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or not _REFUSED.search(f"{error}: {message}"):
        return message
    return (
        f"{message}\nThis worker may map {limit / 2**20:.0f} MiB of address space: {ADDRESS_SPACE_KEY} limits it. Unset it,"
        f" and set {OVERHEAD_KEY} to what Python needs"
    )
