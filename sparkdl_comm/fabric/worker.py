"""Role of a worker: its updates and their outcome, the models it receives, and its all-reduces."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import DeadlineError, GangError, InputError, SparkdlCommError
from sparkdl_comm.fabric.message import Kind
from sparkdl_comm.fabric.node_role import NodeRole, Payload
from sparkdl_comm.fabric.protocol import (
    Ended,
    Expect,
    Fence,
    Message,
    Outcome,
    Ready,
    Reduce,
    Reduced,
    Release,
    Reorder,
    Send,
    Skip,
    Wanted,
    Welcome,
    unpack_transfer_number,
)
from sparkdl_comm.fabric.receiver import Arrival
from sparkdl_comm.fabric.server import ServerRole
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


class PushHandle:
    """Handle of an update that was handed over. The worker may continue meanwhile."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._done = threading.Event()
        self._outcome: PushOutcome | SparkdlCommError | None = None

    def wait(self) -> PushOutcome:
        """Wait for the outcome of the update.

        :raises DeadlineError: the outcome is not known within ``spark.sparkdl.comm.timeout``.
        :raises SparkdlCommError: why the job ended meanwhile.
        """
        if not self._done.wait(self._timeout):
            raise DeadlineError(
                f"an update was neither applied nor dropped within {self._timeout:g} s; set {TIMEOUT_KEY}"
            )
        if isinstance(self._outcome, PushOutcome):
            return self._outcome
        raise self._outcome or GangError("the fabric's job has ended")

    def settle(self, outcome: PushOutcome | SparkdlCommError | None) -> None:
        self._outcome = outcome
        self._done.set()


@dataclass
class _Reduction:
    """Vector of this worker in an all-reduce, overwritten by the sum."""

    vector: NDArray[np.float32]
    is_done: bool = False

    def finish(self, total: NDArray[np.float32]) -> None:
        np.copyto(self.vector, total)
        self.is_done = True


class WorkerRole(NodeRole):
    """Role of a worker. ``timeout``: seconds to wait for a model, a sum, or an update's outcome."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        self._elements = 0
        self._servers: list[int] = []
        self._version = 0
        self._updates: dict[int, NDArray[np.float32]] = {}
        self._pushes: dict[int, PushHandle] = {}
        self._next_update = 0
        self._batch = -1
        self._model: NDArray[np.float32] | None = None
        self._missing_elements = 0
        self._oldest_version = 0  # oldest version of the shards received
        self._models: list[tuple[NDArray[np.float32], int]] = []
        self._last_reduction = 0  # number of this worker's last all-reduce
        self._reductions: dict[int, _Reduction] = {}
        self._summing_servers: dict[int, ServerRole] = {}  # sums of the all-reduces that have this worker as their root

    @property
    def elements(self) -> int:
        """Length of the whole model."""
        return self._elements

    def add_update(self, server: int, update: NDArray[np.float32], norm: float | None) -> tuple[PushHandle, Ready]:
        """Copy an update, and return its handle and the message for the scheduler. Errors are those of ``Worker.push``."""
        self._check_server(server)
        if update.shape != (self._elements,) or update.dtype != np.float32:
            raise InputError(
                f"an update must be float32 [{self._elements}], like the model, not {update.dtype} {list(update.shape)}"
            )
        # A finite sum means finite elements. Elements so large that their sum overflows have ended training anyway.
        is_finite = math.isfinite(float(update.sum()))
        if not is_finite:
            norm = math.nan
        elif norm is None:
            norm = float(np.linalg.norm(update))
        with self._changed:
            self._raise_if_ended()
            number, self._next_update = self._next_update, self._next_update + 1
            self._updates[number] = update.copy()
            push = self._pushes[number] = PushHandle(self._timeout)
            return push, Ready(number, self._version, norm)

    def await_model(self, model: NDArray[np.float32]) -> int:
        """Wait for the model after :class:`Wanted` was sent. Copy it into ``model`` and return its version."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._models or self._has_ended, self._timeout):
                raise DeadlineError(f"the model did not arrive within {self._timeout:g} s; set {TIMEOUT_KEY}")
            self._raise_if_ended()
            values, self._version = self._models.pop(0)
        np.copyto(model, values)
        return self._version

    def add_vector(self, vector: NDArray[np.float32]) -> Reduce:
        """Take this worker's vector for the next all-reduce, and return the message for the scheduler.

        :raises InputError: the vector is not flat, contiguous and float32.
        """
        if vector.dtype != np.float32 or vector.ndim != 1 or not vector.flags.c_contiguous:
            raise InputError(f"all_reduce takes flat float32 vectors, not {vector.dtype} {list(vector.shape)}")
        with self._changed:
            self._raise_if_ended()
            self._last_reduction += 1
            self._reductions[self._last_reduction] = _Reduction(vector)
            return Reduce(self._last_reduction, len(vector), float(np.linalg.norm(vector)))

    def await_sum(self, number: int) -> None:
        """Wait until the vector of this all-reduce is the sum. Errors are those of ``Worker.all_reduce``."""
        with self._changed:
            reduction = self._reductions[number]
            if not self._changed.wait_for(lambda: reduction.is_done or self._has_ended, self._timeout):
                raise DeadlineError(f"an all-reduce was not complete within {self._timeout:g} s; set {TIMEOUT_KEY}")
            if not reduction.is_done:
                self._raise_if_ended()
            del self._reductions[number]

    def request_model(self, server: int, model: NDArray[np.float32]) -> Wanted:
        """Check the arguments of ``Worker.get``, and return the message for the scheduler. Errors are those of
        ``Worker.get``."""
        self._check_server(server)
        if model.shape != (self._elements,) or model.dtype != np.float32:
            raise InputError(f"model must be float32 [{self._elements}], not {model.dtype} {list(model.shape)}")
        with self._changed:
            self._raise_if_ended()
            self._models.clear()  # a model may arrive twice if its sender was taken for lost
        return Wanted()

    def _check_server(self, server: int) -> None:
        if server not in self._servers:
            raise InputError(
                f"rank {server} is not a server; the servers are {format_ranks(self._servers) if self._servers else 'none'}"
            )

    # ---- called by the daemon

    def on_arrival(self, arrival: Arrival) -> None:
        expected = arrival.expected
        if expected.content == Kind.UPDATE:
            self._summing_servers[expected.course].on_arrival(arrival)
            return
        if expected.course:
            with self._changed:
                self._reductions[expected.course].finish(arrival.values)
                self._changed.notify_all()
            self.report(Ended(expected.transfer))
            return
        with self._changed:
            if expected.batch != self._batch or self._model is None:
                self._batch, self._missing_elements = expected.batch, self._elements
                self._oldest_version = arrival.header.base_version
                self._model = np.empty(self._elements, np.float32)
            self._model[expected.offset : expected.offset + expected.elements] = arrival.values
            self._missing_elements -= expected.elements
            self._oldest_version = min(self._oldest_version, arrival.header.base_version)
            if not self._missing_elements:
                self._models.append((self._model, self._oldest_version))
                self._model = None
                self._changed.notify_all()
        self.report(Ended(expected.transfer))

    def await_payload(self, order: Send) -> Payload | None:
        if order.content == Kind.MODEL:
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

    def on_message(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._elements, self._servers = sum(message.elements), message.servers
        elif isinstance(message, Expect) and message.content == Kind.UPDATE:
            self._summing_server(message.course, message.elements).on_message(message)
        elif isinstance(message, Reorder):
            self._summing_servers[unpack_transfer_number(message.transfer)[0]].on_message(message)
        elif isinstance(message, Skip):
            self._summing_servers[message.course].on_message(message)
        elif isinstance(message, Reduced):
            with self._changed:
                self._summing_servers.pop(message.number).end(None)
                self._changed.notify_all()
        elif isinstance(message, Outcome) and not message.course:
            with self._changed:
                push = self._pushes.pop(message.update, None)
                self._changed.notify_all()
            if push is not None:
                push.settle(PushOutcome(message.version if message.version >= 0 else None, message.why))
        elif isinstance(message, Release) and not message.course:
            with self._changed:
                self._updates.pop(message.update, None)

    def on_fence(self, message: Fence) -> None:
        for server in self._summing_servers.values():
            server.forget(message.transfers)
        super().on_fence(message)

    def _summing_server(self, course: int, elements: int) -> ServerRole:
        """Return the summing server of an all-reduce that has this worker as its root."""
        if course not in self._summing_servers:
            server = self._summing_servers[course] = ServerRole(np.zeros(elements, np.float32), 0.0, None)
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
            push.settle(error)
