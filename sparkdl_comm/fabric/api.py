"""API of the MLfabric paper (section 4, table 1): registration of a rank with a role, and what each role can do."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.fabric.daemon import Daemon
from sparkdl_comm.fabric.directory import SCHEDULER
from sparkdl_comm.fabric.endpoints import Endpoints
from sparkdl_comm.fabric.node_process import NodeProcess
from sparkdl_comm.fabric.node_role import NodeRole
from sparkdl_comm.fabric.params import FabricParams, SchedulerOptions
from sparkdl_comm.fabric.protocol import Register
from sparkdl_comm.fabric.server import RequestCallback, ServerRole, UpdateCallback
from sparkdl_comm.fabric.service import SchedulerService
from sparkdl_comm.fabric.worker import PushHandle, WorkerRole
from sparkdl_comm.gang.gang import Gang


class Fabric:
    """Membership of one rank in the fabric of its gang. Every rank registers with one role.

    Rank 0 also runs the scheduler, which may be its only role. Losing rank 0 ends the gang. All ranks must close the
    fabric. As a context manager it closes itself, and aborts if an exception ends the context.
    """

    def __init__(
        self, gang: Gang, options: SchedulerOptions, ports: tuple[int, int] = (0, 0), tolerates_loss: bool = True
    ) -> None:
        """``ports``: as in ``spark.sparkdl.comm.ports``, for node processes of this rank.

        ``tolerates_loss``: if False, a lost rank fails the gang; a lost node process does not.
        """
        self._gang, self._options, self._ports, self._tolerates_loss = gang, options, ports, tolerates_loss
        self._endpoints = Endpoints.of(gang, options.timeout)
        #: Node processes that this rank has started.
        self.processes: list[NodeProcess] = []
        self._daemon: Daemon | None = None
        self._is_aborted = False
        self.service: SchedulerService | None = None
        gang.close_in_children(self._sockets)
        gang.on_failure(lambda _: self.abort())

    def register_as_worker(
        self,
        params: FabricParams,
        aggregators: int = 1,
        process_states: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> Worker:
        """Register as a rank that computes updates. Returns when all ranks have registered.

        :param aggregators: how many aggregator processes this rank starts.
        :param process_states: servers and replicas that this rank starts as processes: ``server`` or ``replica`` -> the
            model, float32 ``[n]``, which is copied; with momentum ``[2 n]``, the model followed by its last step.
        :raises DeadlineError: not all ranks registered in time.
        :raises GangError: the registrations are inconsistent, as with different ``params`` or two servers of one shard.
        """
        node_role = WorkerRole(self._options.timeout)
        daemon = self._join(params, node_role, "worker", aggregators, process_states)
        return Worker(daemon, node_role)

    def register_as_server(self, params: FabricParams, model: NDArray[np.float32], shard: int = 0) -> Server:
        """Register as a rank that owns the model, float32 ``[n]``, changed in place; or shard number ``shard`` of it.

        Waits and raises as :meth:`register_as_worker`.
        """
        return self._serve("server", params, model, shard)

    def register_as_replica(
        self, server: int, params: FabricParams, model: NDArray[np.float32], shard: int = 0
    ) -> Server:
        """Register as a rank that takes over if rank ``server`` is lost. Waits and raises as
        :meth:`register_as_worker`.

        :param model: the same as the server's initial model, or shard number ``shard`` of it.
        :raises InputError: ``server`` is no other rank of the gang.
        :raises ConfError: ``sync`` is ``bsp``, which needs no replica.
        """
        if not 0 <= server < self._gang.world or server == self._gang.rank:
            raise InputError(f"server={server}: must be another rank of the {self._gang.world} in the gang")
        if params.sync == "bsp":
            raise ConfError("sync=bsp has no use for a replica: every worker has the model of the last iteration")
        return self._serve("replica", params, model, shard)

    def register_as_scheduler(self, params: FabricParams) -> StandaloneScheduler:
        """Register rank 0 as nothing but the scheduler. Waits and raises as :meth:`register_as_worker`.

        :raises InputError: this is not rank 0.
        """
        if self._gang.rank != 0:
            raise InputError(f"rank {self._gang.rank} cannot be the scheduler: only rank 0 can")
        node_role = NodeRole()
        self._join(params, node_role, SCHEDULER)
        return StandaloneScheduler(node_role)

    def find_process(self, role: str) -> NodeProcess | None:
        """Return the first running process of this role that this rank has started, or None."""
        return next((process for process in self.processes if process.role == role and process.is_alive), None)

    def close(self) -> None:
        """Leave the fabric. May be called repeatedly.

        A rank with node processes, or with the scheduler, waits until all workers have left: these serve other ranks
        too.
        """
        if self._daemon is None or self._daemon.error is not None:
            self.abort()
        if self._daemon is not None:
            self._daemon.close(0.0 if self._is_aborted else self._options.timeout)
        for process in self.processes:
            process.close(self._options.timeout)
        if self.service is not None:
            self.service.close()

    def abort(self) -> None:
        """End every wait of this rank, and kill its node processes. May be called from any thread."""
        self._is_aborted = True
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

    def _serve(self, role: str, params: FabricParams, model: NDArray[np.float32], shard: int) -> Server:
        node_role = ServerRole(model, params.momentum, params.delay_bound, params.version)
        self._join(params, node_role, role, elements=len(model), crc=zlib.crc32(model.data), shard=shard)
        return Server(node_role)

    def _join(
        self,
        params: FabricParams,
        node_role: NodeRole,
        role: str,
        aggregators: int = 0,
        process_states: Mapping[str, NDArray[np.float32]] | None = None,
        **fields: Any,
    ) -> Daemon:
        gang, endpoints = self._gang, self._endpoints
        if self._daemon is not None:
            raise GangError(f"rank {gang.rank} has registered already, as {self._daemon.register.role}")
        if gang.rank == 0:
            self.service = SchedulerService(gang, params.to_rules(), self._options, self._tolerates_loss)
        gang.all_gather(b"", self._options.timeout)  # rank 0 accepts registrations from now on
        for _ in range(aggregators):
            self.processes.append(NodeProcess(endpoints, params, self._ports, "aggregator"))
        for process_role, state in (process_states or {}).items():
            self.processes.append(NodeProcess(endpoints, params, self._ports, process_role, state))
        num_helpers = len(self.processes)
        register = Register(role, gang.rank, endpoints.host, endpoints.rails, params.to_json(), num_helpers, **fields)
        self._daemon = Daemon(endpoints, gang.serve, node_role, register)
        self._daemon.await_registrations()
        return self._daemon

    def _sockets(self) -> list[Any]:
        own_sockets = [] if self._daemon is None else self._daemon.sockets()
        return [*own_sockets, *([] if self.service is None else self.service.sockets())]


class Worker:
    """Rank that computes updates. ``elements``: length of the whole model."""

    def __init__(self, daemon: Daemon, node_role: WorkerRole) -> None:
        """Do not call directly."""
        self._daemon, self._node_role = daemon, node_role
        self.elements = node_role.elements

    def push(self, server: int, update: NDArray[np.float32], update_norm: float | None = None) -> PushHandle:
        """Copy an update and hand it over. It is sent when the scheduler orders so.

        :param server: the rank that registered the model; any of the servers if the model is sharded.
        :param update: float32 ``[n]``, of the whole model, computed from the model that the last :meth:`get` returned.
        :param update_norm: L2 norm of the update; None computes it.
        :raises InputError: wrong shape or dtype.
        :raises GangError: the job has ended.
        """
        push, ready = self._node_role.add_update(server, update, update_norm)
        self._daemon.report(ready)
        return push

    def get(self, server: int, model: NDArray[np.float32]) -> int:
        """Copy the model into ``model``, float32 ``[n]``, and return its version, the number of updates that it
        contains.

        Waits until the scheduler lets the worker continue: with ``bsp`` and ``ssp``, until other workers have caught
        up.

        :param server: as for :meth:`push`.
        :raises InputError: wrong shape or dtype.
        :raises GangError: the job has ended.
        :raises DeadlineError: the model does not arrive within ``spark.sparkdl.comm.timeout``.
        """
        self._daemon.report(self._node_role.request_model(server, model))
        return self._node_role.await_model(model)

    def all_reduce(self, update: NDArray[np.float32]) -> NDArray[np.float32]:
        """Overwrite ``update`` with the sum over all workers, and return it. All remaining workers call this in the
        same order.

        Each call draws a worker at random as the root. The tree that sums at this root is planned for the available
        bandwidth.

        :param update: float32 ``[n]``, of the same length at all workers.
        :raises InputError: wrong dtype or shape.
        :raises DeadlineError: the sum is not complete within ``spark.sparkdl.comm.timeout``.
        :raises GangError: the job has ended. Different lengths, or a norm that is not finite, end it.
        """
        reduction = self._node_role.add_vector(update)
        self._daemon.report(reduction)
        self._node_role.await_sum(reduction.number)
        return update


class Server:
    """Rank that owns the model or its replica."""

    def __init__(self, node_role: ServerRole) -> None:
        """Do not call directly."""
        self._node_role = node_role

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Replace SGD with momentum by ``callback(model, update, count)``. Call this before :meth:`serve`.

        The callback applies the sum of ``count`` updates to ``model`` in place; both are float32 ``[n]``.
        """
        self._node_role.register_update_callback(callback)

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Send ``callback(model)``, float32 ``[n]``, to workers in place of the model. Call this before :meth:`serve`."""
        self._node_role.register_request_callback(callback)

    def serve(self, timeout: float | None = None) -> None:
        """Apply updates and send the model until all workers have left.

        :raises DeadlineError: the workers have not left within ``timeout`` seconds.
        :raises GangError: the job cannot continue.
        """
        self._node_role.serve(timeout)

    def snapshot(self) -> tuple[NDArray[np.float32], int]:
        """Return a copy of the model, float32 ``[n]``, and its version, the number of updates that it contains."""
        return self._node_role.snapshot()

    @property
    def version(self) -> int:
        """Number of updates that the model contains."""
        return self._node_role.version

    @property
    def largest_delay(self) -> int:
        """Largest delay of an update applied here.

        A delay counts the updates applied since the version that the update was computed from, itself included.
        """
        return self._node_role.largest_delay


class StandaloneScheduler:
    """Rank 0 without any role but the scheduler."""

    def __init__(self, node_role: NodeRole) -> None:
        """Do not call directly."""
        self.await_end = node_role.await_end
