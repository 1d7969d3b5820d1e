"""Role of a worker: its updates and their outcome, the models it receives, and its all-reduces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.errors import DeadlineError, GangError, InputError, SparkdlCommError
from sparkdl_comm.fabric import protocol
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.roles import NodeRole, Payload
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.fabric.transport import Arrival
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.members import format_ranks


@dataclass(frozen=True)
class PushOutcome:
    """Outcome of an update.

    - ``version``: the model version that contains it; None if it was dropped.
    - ``why``: the reason for dropping it. ``deadline``: its delay would have exceeded the bound. ``norm``: it was not
      finite. ``divergence``: it was too large for the divergence bound. ``lost``: its holder was lost.
    """

    version: int | None
    why: str = ""


@dataclass
class _Reduction:
    """Vector of this worker in an all-reduce, overwritten by the sum."""

    vector: NDArray[np.float32]
    is_done: bool = False


class Worker(NodeRole):
    """Rank that computes updates, made by ``register_as_worker``.

    :param timeout: seconds to wait for a model, a sum, or an update's outcome.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        #: Length of the whole model.
        self.elements = 0
        self._servers: list[int] = []
        self._version = 0
        self._updates: dict[int, NDArray[np.float32]] = {}
        self._pushes: dict[int, Work[PushOutcome]] = {}
        self._next_update = 0
        self._batch = -1
        self._model: NDArray[np.float32] | None = None
        self._missing_elements = 0
        self._oldest_version = 0  # oldest version of the shards received
        self._models: list[tuple[NDArray[np.float32], int]] = []
        self._last_reduction = 0  # number of this worker's last all-reduce
        self._reductions: dict[int, _Reduction] = {}
        self._summing_servers: dict[int, Server] = {}  # sums of the all-reduces that have this worker as their root

    def push(self, server: int, update: NDArray[np.float32], update_norm: float | None = None) -> Work[PushOutcome]:
        """Copy an update and hand it over. It is sent when the scheduler orders so.

        :param server: the rank that registered the model; any of the servers if the model is sharded.
        :param update: float32 ``[n]``, of the whole model, computed from the model that the last :meth:`get` returned.
        :param update_norm: L2 norm of the update; None computes it.
        :raises InputError: wrong shape or dtype, or ``server`` is no server.
        :raises GangError: the job has ended.
        """
        self._check(server, "an update", update)
        # A finite sum means finite elements. Elements so large that their sum overflows have ended training anyway.
        is_finite = math.isfinite(float(update.sum()))
        if not is_finite:
            update_norm = math.nan
        elif update_norm is None:
            update_norm = float(np.linalg.norm(update))
        with self._changed:
            self._raise_if_ended()
            number, self._next_update = self._next_update, self._next_update + 1
            self._updates[number] = update.copy()
            push = self._pushes[number] = Work(f"update {number} of this worker", self._timeout)
            ready = protocol.Ready(number, self._version, update_norm)
        self.report(ready)
        return push

    def get(self, server: int, model: NDArray[np.float32]) -> int:
        """Copy the model into ``model``, float32 ``[n]``. Return its version: the number of updates that it contains.

        Waits until the scheduler lets the worker continue: with ``bsp`` and ``ssp``, until other workers have caught
        up.

        :param server: rank that registered the model. If the model is sharded, rank of any of the servers.
        :raises InputError: wrong shape or dtype, or ``server`` is no server.
        :raises GangError: the job has ended.
        :raises DeadlineError: the model does not arrive within ``spark.sparkdl.comm.timeout``.
        """
        self._check(server, "model", model)
        with self._changed:
            self._raise_if_ended()
            self._models.clear()  # a model may arrive twice if its sender was taken for lost
        self.report(protocol.Wanted())
        with self._changed:
            if not self._changed.wait_for(lambda: self._models or self._has_ended, self._timeout):
                raise DeadlineError(f"the model did not arrive within {self._timeout:g} s; set {TIMEOUT_KEY}")
            self._raise_if_ended()
            values, self._version = self._models.pop(0)
        np.copyto(model, values)
        return self._version

    def all_reduce(self, update: NDArray[np.float32]) -> NDArray[np.float32]:
        """Overwrite ``update`` with the sum over all workers, and return it. All remaining workers call this in the
        same order.

        Each call draws a worker at random as the root. The tree that sums at this root is planned for the available
        bandwidth.

        :param update: flat, contiguous float32 ``[n]``, of the same length at all workers.
        :raises InputError: wrong dtype or shape.
        :raises DeadlineError: the sum is not complete within ``spark.sparkdl.comm.timeout``.
        :raises GangError: the job has ended. Different lengths, or a norm that is not finite, end it.
        """
        if update.dtype != np.float32 or update.ndim != 1 or not update.flags.c_contiguous:
            raise InputError(f"all_reduce takes flat float32 vectors, not {update.dtype} {list(update.shape)}")
        with self._changed:
            self._raise_if_ended()
            self._last_reduction = number = self._last_reduction + 1
            reduction = self._reductions[number] = _Reduction(update)
            reduce = protocol.Reduce(number, len(update), float(np.linalg.norm(update)))
        self.report(reduce)
        with self._changed:
            if not self._changed.wait_for(lambda: reduction.is_done or self._has_ended, self._timeout):
                raise DeadlineError(f"an all-reduce was not complete within {self._timeout:g} s; set {TIMEOUT_KEY}")
            if not reduction.is_done:
                self._raise_if_ended()
            del self._reductions[number]
        return update

    def _check(self, server: int, name: str, values: NDArray[np.float32]) -> None:
        if server not in self._servers:
            servers = format_ranks(self._servers) if self._servers else "none"
            raise InputError(f"rank {server} is not a server; the servers are {servers}")
        if values.shape != (self.elements,) or values.dtype != np.float32:
            shape = list(values.shape)
            raise InputError(
                f"{name} must be float32 [{self.elements}] like the servers' model, not {values.dtype} {shape}"
            )

    # ---- called by the daemon

    def on_arrival(self, arrival: Arrival) -> None:
        expected = arrival.expected
        if expected.content == protocol.Kind.UPDATE:
            self._summing_servers[expected.course].on_arrival(arrival)
            return
        if expected.course:
            with self._changed:
                reduction = self._reductions[expected.course]
                np.copyto(reduction.vector, arrival.values)
                reduction.is_done = True
                self._changed.notify_all()
            self.report(protocol.Ended(expected.transfer))
            return
        with self._changed:
            if expected.batch != self._batch or self._model is None:
                self._batch, self._missing_elements = expected.batch, self.elements
                self._oldest_version = arrival.header.base_version
                self._model = np.empty(self.elements, np.float32)
            self._model[expected.offset : expected.offset + expected.elements] = arrival.values
            self._missing_elements -= expected.elements
            self._oldest_version = min(self._oldest_version, arrival.header.base_version)
            if not self._missing_elements:
                self._models.append((self._model, self._oldest_version))
                self._model = None
                self._changed.notify_all()
        self.report(protocol.Ended(expected.transfer))

    def await_payload(self, order: protocol.Send) -> Payload | None:
        if order.content == protocol.Kind.MODEL:
            return self._summing_servers[order.course].await_payload(order)
        with self._changed:
            if order.course:
                update: NDArray[np.float32] | None = self._reductions[order.course].vector
            else:
                update = self._updates.get(order.update)
        if update is None:
            return None
        chunk = update[order.offset : order.offset + order.elements]
        scaled = chunk if order.scale == 1.0 else chunk * np.float32(order.scale)
        return Payload(scaled, order.staleness, order.count)

    def on_message(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Welcome):
            self.elements, self._servers = sum(message.elements), message.servers
        elif isinstance(message, protocol.Expect) and message.content == protocol.Kind.UPDATE:
            self._summing_server(message.course, message.elements).on_message(message)
        elif isinstance(message, protocol.Reorder):
            self._summing_servers[protocol.unpack_transfer_number(message.transfer)[0]].on_message(message)
        elif isinstance(message, protocol.Skip):
            self._summing_servers[message.course].on_message(message)
        elif isinstance(message, protocol.Reduced):
            with self._changed:
                self._summing_servers.pop(message.number).end(None)
                self._changed.notify_all()
        elif isinstance(message, protocol.Outcome) and not message.course:
            with self._changed:
                push = self._pushes.pop(message.update, None)
                self._changed.notify_all()
            if push is not None:
                push.set_result(PushOutcome(message.version if message.version >= 0 else None, message.why))
        elif isinstance(message, protocol.Release) and not message.course:
            with self._changed:
                self._updates.pop(message.update, None)

    def on_fence(self, message: protocol.Fence) -> None:
        for server in self._summing_servers.values():
            server.forget(message.transfers)
        super().on_fence(message)

    def _summing_server(self, course: int, elements: int) -> Server:
        """Return the summing server of an all-reduce that has this worker as its root."""
        if course not in self._summing_servers:
            server = self._summing_servers[course] = Server(np.zeros(elements, np.float32), FabricParams("bsp"))
            server.report = self.report
            server.begin()
        return self._summing_servers[course]

    def await_idle(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or not (self._pushes or self._summing_servers), timeout)

    def end(self, error: SparkdlCommError | None) -> None:
        super().end(error)
        with self._changed:
            pushes, self._pushes = list(self._pushes.values()), {}
            self._updates.clear()
        for push in pushes:
            push.set_error(error or GangError("the fabric's job has ended"))
