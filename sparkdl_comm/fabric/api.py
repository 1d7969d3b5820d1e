"""API of the MLfabric paper (section 4, table 1): a rank registers with a role, an object with its operations."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.fabric.control import SCHEDULER
from sparkdl_comm.fabric.daemon import Daemon, Endpoints
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.process import NodeProcess
from sparkdl_comm.fabric.protocol import Register
from sparkdl_comm.fabric.roles import NodeRole
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.fabric.worker import Worker
from sparkdl_comm.gang.gang import Gang

if TYPE_CHECKING:
    from sparkdl_comm.fabric.service import SchedulerService

RoleType = TypeVar("RoleType", bound=NodeRole)


class Fabric:
    """Membership of one rank in the fabric of its gang. Every rank registers with one role.

    Rank 0 also runs the scheduler, which may be its only role. Losing rank 0 ends the gang. All ranks must close the
    fabric. As a context manager it closes itself, and aborts if an exception ends the context.
    """

    def __init__(self, gang: Gang, conf: CommConf, tolerates_loss: bool = True) -> None:
        """``tolerates_loss``: if False, a lost rank fails the gang; a lost node process does not."""
        self._gang, self._conf, self._tolerates_loss = gang, conf, tolerates_loss
        scheduler, own = gang.members[0], gang.members[gang.rank]
        rails = [(rail.address, rail.port) for rail in own.rails]
        self._endpoints = Endpoints(
            gang.credentials, (scheduler.host, scheduler.port), gang.bind_ip, own.host, rails, conf.timeout
        )
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
        return self._join(params, Worker(self._conf.timeout), "worker", aggregators, process_states)

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

        :param model: the same as the server's initial model, float32 ``[n]``, or shard number ``shard`` of it.
        :raises InputError: ``server`` is no other rank of the gang.
        :raises ConfError: ``sync`` is ``bsp``, which needs no replica.
        """
        if not 0 <= server < self._gang.world or server == self._gang.rank:
            raise InputError(f"server={server}: must be another rank of the {self._gang.world} in the gang")
        if params.sync == "bsp":
            raise ConfError("sync=bsp has no use for a replica: every worker has the model of the last iteration")
        return self._serve("replica", params, model, shard)

    def register_as_scheduler(self, params: FabricParams) -> NodeRole:
        """Register rank 0 as nothing but the scheduler. Its ``await_end`` waits for the end of the job.

        Waits and raises as :meth:`register_as_worker`.

        :raises InputError: this is not rank 0.
        """
        if self._gang.rank != 0:
            raise InputError(f"rank {self._gang.rank} cannot be the scheduler: only rank 0 can")
        return self._join(params, NodeRole(), SCHEDULER)

    @property
    def server_process(self) -> NodeProcess | None:
        """Running server process that this rank has started, or None."""
        return next((process for process in self.processes if process.role == "server" and process.is_alive), None)

    def close(self) -> None:
        """Leave the fabric. May be called repeatedly.

        A rank with node processes, or with the scheduler, waits until all workers have left: these serve other ranks
        too.
        """
        if self._daemon is None or self._daemon.error is not None:
            self.abort()
        if self._daemon is not None:
            self._daemon.close(0.0 if self._is_aborted else self._conf.timeout)
        for process in self.processes:
            process.close(self._conf.timeout)
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
        return self._join(
            params, Server(model, params), role, elements=len(model), crc=zlib.crc32(model.data), shard=shard
        )

    def _join(
        self,
        params: FabricParams,
        node_role: RoleType,
        role: str,
        aggregators: int = 0,
        process_states: Mapping[str, NDArray[np.float32]] | None = None,
        **fields: Any,
    ) -> RoleType:
        gang, endpoints = self._gang, self._endpoints
        if self._daemon is not None:
            raise GangError(f"rank {gang.rank} has registered already, as {self._daemon.register.role}")
        if gang.rank == 0:
            from sparkdl_comm.fabric.service import SchedulerService  # the other ranks need no scheduler

            self.service = SchedulerService(gang, params, self._conf, self._tolerates_loss)
        gang.all_gather(b"", self._conf.timeout)  # rank 0 accepts registrations from now on
        for _ in range(aggregators):
            self.processes.append(NodeProcess(endpoints, params, self._conf.ports, "aggregator"))
        for process_role, state in (process_states or {}).items():
            self.processes.append(NodeProcess(endpoints, params, self._conf.ports, process_role, state))
        num_helpers = len(self.processes)
        register = Register(role, gang.rank, endpoints.host, endpoints.rails, params.to_json(), num_helpers, **fields)
        self._daemon = Daemon(endpoints, gang.serve, node_role, register)
        self._daemon.await_registrations()
        return node_role

    def _sockets(self) -> list[Any]:
        own_sockets = [] if self._daemon is None else self._daemon.sockets()
        return [*own_sockets, *([] if self.service is None else self.service.sockets())]


def register_as_worker(params: FabricParams, aggregators: int = 1) -> Worker:
    """Register this rank of CommDistributor as a worker; see :meth:`Fabric.register_as_worker`."""
    return _current_fabric().register_as_worker(params, aggregators)


def register_as_server(params: FabricParams, model: NDArray[np.float32], shard: int = 0) -> Server:
    """Register this rank of CommDistributor as the owner of ``model``, float32 ``[n]``; see
    :meth:`Fabric.register_as_server`."""
    return _current_fabric().register_as_server(params, model, shard)


def register_as_replica(server: int, params: FabricParams, model: NDArray[np.float32], shard: int = 0) -> Server:
    """Register this rank of CommDistributor as the replica of rank ``server``, with its initial ``model``, float32
    ``[n]``; see :meth:`Fabric.register_as_replica`."""
    return _current_fabric().register_as_replica(server, params, model, shard)


def register_as_scheduler(params: FabricParams) -> NodeRole:
    """Register this rank of CommDistributor as nothing but the scheduler; see :meth:`Fabric.register_as_scheduler`."""
    return _current_fabric().register_as_scheduler(params)


def _current_fabric() -> Fabric:
    from sparkdl_comm.collectives.communicator import Communicator  # strategy fabric needs no collectives

    return Communicator.current().once("fabric", lambda ranks, conf, _: Fabric(ranks.gang, conf), is_awaited=True)
