"""The API of the MLfabric paper (section 4, table 1): what a rank registers as, and what it can do then."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.fabric.daemon import Daemon
from sparkdl_comm.fabric.directory import SCHEDULER
from sparkdl_comm.fabric.node_process import NodeProcess
from sparkdl_comm.fabric.options import Options
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.part import Part
from sparkdl_comm.fabric.protocol import Register
from sparkdl_comm.fabric.server import RequestCallback, ServerPart, UpdateCallback
from sparkdl_comm.fabric.service import SchedulerService
from sparkdl_comm.fabric.wires import Wires
from sparkdl_comm.fabric.worker import Push, WorkerPart
from sparkdl_comm.gang.gang import Gang


class Fabric:
    """One rank's, in a gang of which every rank registers as one of the roles. Rank 0 is the scheduler beside its role; it
    may be nothing else, and its loss is the gang's end.

    To be closed by all ranks. As a context manager it closes itself, and breaks off if an exception ends the context.
    """

    def __init__(self, gang: Gang, options: Options, ports: tuple[int, int] = (0, 0), tolerant: bool = True) -> None:
        """``ports``: as ``spark.sparkdl.comm.ports``; for nodes beside this rank. ``tolerant``: False: a rank that is lost
        is the gang's failure, but not a process beside one."""
        self._gang, self._options, self._ports, self._tolerant = gang, options, ports, tolerant
        self._wires = Wires.of(gang, options.timeout)
        #: The nodes beside this rank.
        self.processes: list[NodeProcess] = []
        self._daemon: Daemon | None = None
        self._aborted = False
        self.service: SchedulerService | None = None
        gang.close_in_children(self._sockets)
        gang.on_failure(lambda _: self.abort())

    def register_as_worker(
        self, params: FabricParams, aggregators: int = 1, beside: Mapping[str, np.ndarray] | None = None
    ) -> Worker:
        """A rank that computes updates. Returns when all ranks have registered.

        :param aggregators: how many aggregators it starts beside itself, each a process.
        :param beside: ``server`` or ``replica``, if there is to be one in a process beside this rank, -> the model, float32
            ``[n]``, which is copied; with momentum ``[2 n]``, its last step behind it.
        :raises DeadlineError: not all ranks have registered in time.
        :raises GangError: the ranks do not fit together, as with different ``params`` or two servers of one part; why.
        """
        part = WorkerPart(self._options.timeout)
        daemon = self._join(params, part, "worker", aggregators, beside)
        return Worker(daemon, part)

    def register_as_server(self, params: FabricParams, model: np.ndarray, shard: int = 0) -> Server:
        """A rank that has the model, float32 ``[n]``, and changes it in place; or one part of it, number ``shard``.

        Otherwise as :meth:`register_as_worker`.
        """
        return self._serve("server", params, model, shard)

    def register_as_replica(self, server: int, params: FabricParams, model: np.ndarray, shard: int = 0) -> Server:
        """A rank that takes over when the server, rank ``server``, is lost. ``model``: the same as the server begins with.
        Otherwise as :meth:`register_as_server`."""
        if not 0 <= server < self._gang.world or server == self._gang.rank:
            raise InputError(f"server={server}: must be another rank, of the {self._gang.world} there are")
        if params.sync == "bsp":
            raise ConfError("sync=bsp has no use for a replica: every worker has the model of the last iteration")
        return self._serve("replica", params, model, shard)

    def register_as_scheduler(self, params: FabricParams) -> Scheduling:
        """Rank 0, if it is to be nothing else. Otherwise as :meth:`register_as_worker`."""
        if self._gang.rank != 0:
            raise InputError(f"rank {self._gang.rank} cannot be the scheduler: rank 0 is")
        part = Part()
        self._join(params, part, SCHEDULER)
        return Scheduling(part)

    def beside(self, role: str) -> NodeProcess | None:
        """The first process of this role that was started beside this rank and has not ended."""
        return next((process for process in self.processes if process.role == role and process.is_alive), None)

    def close(self) -> None:
        """Leaves. Aggregators serve other ranks too, and so does the scheduler: with them, it waits until all workers have
        left. May be repeated."""
        if self._daemon is None or self._daemon.error is not None:
            self.abort()
        if self._daemon is not None:
            self._daemon.close(0.0 if self._aborted else self._options.timeout)
        for process in self.processes:
            process.close(self._options.timeout)
        if self.service is not None:
            self.service.close()

    def abort(self) -> None:
        """From any thread: whatever this rank waits for ends, and so do its aggregators."""
        self._aborted = True
        for process in self.processes:
            process.kill()
        if self.service is not None:
            self.service.stop()

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, where: object) -> None:
        if exc is not None:
            self.abort()
        self.close()

    def _serve(self, role: str, params: FabricParams, model: np.ndarray, shard: int) -> Server:
        part = ServerPart(model, params.momentum, params.delay_bound, params.version)
        self._join(params, part, role, elements=len(model), crc=zlib.crc32(model.data), shard=shard)
        return Server(part)

    def _join(
        self,
        params: FabricParams,
        part: Part,
        role: str,
        aggregators: int = 0,
        beside: Mapping[str, np.ndarray] | None = None,
        **more: Any,
    ) -> Daemon:
        gang, wires = self._gang, self._wires
        if self._daemon is not None:
            raise GangError(f"rank {gang.rank} has registered already, as {self._daemon.register.role}")
        if gang.rank == 0:
            self.service = SchedulerService(gang, params.rules(), self._options, self._tolerant)
        gang.all_gather(b"", self._options.timeout)  # rank 0 takes registrations from now on
        for _ in range(aggregators):
            self.processes.append(NodeProcess(wires, params, self._ports, "aggregator"))
        for served, state in (beside or {}).items():
            self.processes.append(NodeProcess(wires, params, self._ports, served, state))
        mine = len(self.processes)
        register = Register(role, gang.rank, wires.host, wires.rails, params.to_json(), mine, **more)
        self._daemon = Daemon(wires, gang.serve, part, register)
        self._daemon.await_all()
        return self._daemon

    def _sockets(self) -> list[Any]:
        mine = [] if self._daemon is None else self._daemon.sockets()
        return [*mine, *([] if self.service is None else self.service.sockets())]


class Worker:
    """A rank that computes updates. ``elements``: of the model."""

    def __init__(self, daemon: Daemon, part: WorkerPart) -> None:
        """Not to be called directly."""
        self._daemon, self._part = daemon, part
        self.elements = part.elements

    def push(self, server: int, update: np.ndarray, update_norm: float | None = None) -> Push:
        """Hands over an update for the model; it is copied, and sent when the scheduler says so.

        :param server: the rank that the model was registered by; of several that have a part of it each, any.
        :param update: float32 ``[n]``, all of the model; computed from what the last :meth:`get` brought.
        :param update_norm: its L2 norm; None: it is computed.
        :raises InputError: another shape or dtype.
        :raises GangError: the job has ended; why.
        """
        push, ready = self._part.add(server, update, update_norm)
        self._daemon.tell(ready)
        return push

    def get(self, server: int, model: np.ndarray) -> int:
        """Puts the model into ``model``, float32 ``[n]``; returns its version, the number of updates that are in it.

        Waits until the scheduler lets the worker go on: with ``bsp`` and ``ssp``, for others.

        :param server: as for :meth:`push`.
        :raises InputError: another shape or dtype.
        :raises GangError: the job has ended; why.
        :raises DeadlineError: it does not come within ``spark.sparkdl.comm.timeout``.
        """
        self._daemon.tell(self._part.check_model(server, model))
        return self._part.await_model(model)

    def all_reduce(self, update: np.ndarray) -> np.ndarray:
        """``update``, overwritten with the sum of all workers'. All workers that are left call it, in the same order.

        It is summed at a worker that is drawn anew each time, by a tree that is made for what the network can carry.

        :param update: float32 ``[n]``, of the same length at all workers.
        :raises InputError: another dtype or shape.
        :raises DeadlineError: it is not complete within ``spark.sparkdl.comm.timeout``.
        :raises GangError: the job has ended; why. It ends if parts have different lengths, or one is not finite.
        """
        part = self._part.add_part(update)
        self._daemon.tell(part)
        self._part.await_sum(part.number)
        return update


class Server:
    """A rank that has the model, or its replica."""

    def __init__(self, part: ServerPart) -> None:
        """Not to be called directly."""
        self._part = part

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Before :meth:`serve`: ``callback(model, update, count)`` is what puts the sum of ``count`` updates into the model,
        in place; float32 ``[n]`` both. Without, SGD with momentum does."""
        self._part.register_update_callback(callback)

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Before :meth:`serve`: ``callback(model)`` is what a worker gets, float32 ``[n]``. Without, the model."""
        self._part.register_request_callback(callback)

    def serve(self, timeout: float | None = None) -> None:
        """Applies updates and sends the model, until all workers have left.

        :raises DeadlineError: they have not within ``timeout`` seconds.
        :raises GangError: the job cannot go on; why.
        """
        self._part.serve(timeout)

    def snapshot(self) -> tuple[np.ndarray, int]:
        """A copy of the model, float32 ``[n]``, and its version, the number of updates that are in it."""
        return self._part.snapshot()

    @property
    def version(self) -> int:
        """How many updates are in the model."""
        return self._part.version

    @property
    def largest_delay(self) -> int:
        """Of all updates that were applied here: how many the model had had since the version that one was computed from,
        itself included."""
        return self._part.largest_delay


class Scheduling:
    """Rank 0, if it is nothing but the scheduler."""

    def __init__(self, part: Part) -> None:
        """Not to be called directly."""
        self.await_end = part.await_end
