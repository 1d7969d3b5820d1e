"""A rank as Spark sees it: one barrier task. It does what every rank does, be it there to train or to run a user's function:
it meets the others at the driver's listener, joins the gang, stays connected to the driver if it is rank 0, and says why it
failed."""

from __future__ import annotations

import dataclasses
import json
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
from sparkdl_comm.job.gpu import task_gpu
from sparkdl_comm.job.memory import with_limit
from sparkdl_comm.job.output import OutputTail

#: What the function of a rank's task returns: one row.
RANK_SCHEMA = "rank int, report string"
#: With what the text begins that stands there in place of a report, if the task raised :class:`RowsGoneError`; its message
#: follows.
ROWS_GONE = "rows gone"
#: The phase in which a user's function is unpickled.
LOADING = "loading"
#: The function of a rank's task: from its rows to the row of :data:`RANK_SCHEMA`.
RankFn: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class GangSpec(Protocol):
    """What a rank must know of its gang; see :class:`sparkdl_comm.train.spec.TrainSpec`."""

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
    """Not all ranks' rows are left on the executors on which this gang's tasks run; raised on all of them. Its message: what
    kept a task from looking, if anything did, else empty."""


class RankTask:
    """One rank's task; ``context`` is Spark's BarrierTaskContext. To be closed: it holds the process's output.

    ``place``: the number of Spark's partition. ``rank``: the same, unless the task chooses another by :meth:`choose_rank`.
    """

    def __init__(self, spec: GangSpec, context: Any) -> None:
        self._spec = spec
        self._context = context
        self.place: int = context.partitionId()
        self._chosen: int | None = self.place
        self._unreadable = ""
        self.rank = self.place
        self.gang: Gang | None = None
        self._driver: DriverClient | None = None
        self._output = OutputTail()

    def choose_rank(self, rank: int | None, why: str = "") -> None:
        """Before the gang is joined. None: the task can be none; then :class:`RowsGoneError` is raised by ``join_gang`` on all
        ranks, as it is if two choose the same. ``why``: what to tell of it; empty if nothing is out of order."""
        self._chosen, self._unreadable = rank, why
        self.rank = self.place if rank is None else rank

    def report(self, report: str) -> pa.RecordBatch:
        """The row that the task ends with."""
        return pa.RecordBatch.from_arrays([pa.array([self.rank], pa.int32()), pa.array([report])], ["rank", "report"])

    def device(self) -> torch.device:
        """The device this rank computes on: the CPU, or the GPU that Spark assigned to the task, else one of its host's."""
        if self._spec.device == "cpu":
            return torch.device("cpu")
        return task_gpu(self._context.resources(), self.place_on_host())

    def place_on_host(self) -> int:
        """Number of the task among those of its stage on the same host, from 0."""
        hosts = [info.address.rsplit(":", 1)[0] for info in self._context.getTaskInfos()]
        return hosts[: self.place].count(hosts[self.place])

    def join_gang(self, payload: dict[str, Any]) -> Gang:
        """Meet the other ranks; ``payload`` (JSON-able) is what they learn of this one.

        :raises RowsGoneError: the ranks that tasks have chosen are not one of each.
        """
        spec, conf = self._spec, self._spec.conf
        self.gang = Gang.join(
            rank=self.rank,
            world=spec.world,
            host=self._context.getTaskInfos()[self.place].address.rsplit(":", 1)[0],
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
        """Rank 0's connection to the driver, closed with ``stack``; None for other ranks."""
        if self.rank != 0:
            return None
        spec = self._spec
        with self._reaching_driver() as address:
            driver = DriverClient.connect(address, spec.secret, spec.attempt_id, spec.conf.timeout)
        stack.callback(driver.close)
        driver.on_gone(self._driver_is_gone)
        self._driver = driver
        if spec.conf.logs:
            self._output.forward(driver.log)
            stack.callback(self._output.end_forward)
        return driver

    def outlast(self, wait: float) -> None:
        """Rank 0 waits ``wait`` seconds at most for the others to leave the gang, and tells the driver if they have: nobody
        else watches over them then. Returns at once on other ranks.

        :raises GangError: the gang has failed; its failure.
        """
        if self.gang is not None and self.gang.outlast(wait) and self._driver is not None:
            self._driver.all_left()

    def _exchange(self, text: str) -> list[str]:
        """Every rank's text, by rank, from the rendezvous at the driver."""
        spec = self._spec
        with self._reaching_driver() as address:
            sock = handshake.connect(address, spec.secret, time.monotonic() + spec.conf.timeout)
        text = json.dumps([self._chosen, text])
        told = rendezvous.register(sock, self.place, spec.world, spec.attempt_id, text, spec.conf.timeout)
        texts = dict(json.loads(each) for each in told)
        if texts.keys() != set(range(spec.world)):
            raise RowsGoneError(self._unreadable)
        return [texts[rank] for rank in range(spec.world)]

    @contextmanager
    def _reaching_driver(self) -> Iterator[Address]:
        """The numeric address of the driver's listener; within, an error of connecting says what to set."""
        host, port = self._spec.driver_address
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
            yield str(address[0]), port
        except (GangError, OSError) as exc:
            raise GangError(
                f"rank {self.rank} cannot reach the driver at {host} port {port} ({exc}): spark.sparkdl.comm.driver.host,"
                " else spark.driver.host, must be an address or name of it that executors reach, and"
                " spark.sparkdl.comm.driver.port one that is open. Behind NAT or in a container, forward that port, and set"
                " spark.driver.bindAddress to where the driver is to listen"
            ) from exc

    def _driver_is_gone(self) -> None:
        """Nobody would get what is trained: the ranks stop, and give their slots back."""
        lost = RankLostError("rank 0 lost its connection to the driver: the driver ended, or gave this run up", rank=0)
        if self.gang is not None:
            self.gang.announce_failure(Failure.of(lost, 0, phase="the connection to the driver", secondary=False))

    def failed(self, failure: Failure) -> RuntimeError:
        """Tell the other ranks and the driver; returns what the task is to raise, with the *first* failure of the gang inside.

        To be called before any connection is closed: else the others would blame the closing.
        """
        if failure.rank == self.rank and not failure.log:
            message = with_limit(failure.error, failure.message)
            failure = dataclasses.replace(failure, message=message, log=self._output.tail())
        if self.gang is not None:
            self.gang.announce_failure(failure)
            failure = self.gang.failure() or failure
        if self._driver is not None:
            self._driver.failed(failure)
        return RuntimeError(failure.embed())

    def close(self) -> None:
        self._output.close()
        if self.gang is not None:
            self.gang.close()
