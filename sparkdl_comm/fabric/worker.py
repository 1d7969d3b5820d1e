"""What a worker has of the fabric: ``push``, ``get``, and what became of its updates."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, InputError, SparkdlCommError
from sparkdl_comm.fabric.part import Part, Values
from sparkdl_comm.fabric.protocol import Ended, Message, Outcome, Ready, Release, Send, Wanted, Welcome
from sparkdl_comm.fabric.receiver import Arrival
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.members import listed


@dataclass(frozen=True)
class Pushed:
    """What became of an update. ``version``: of the model that has it; None if it was dropped, ``why`` says: ``deadline``,
    its delay would have been above the bound; ``norm``, it was no finite number; ``divergence``, it was too large for the
    replica's bound; ``lost``, who had it was lost."""

    version: int | None
    why: str = ""


class Push:
    """An update under way. The worker may go on meanwhile."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._done = threading.Event()
        self._outcome: Pushed | SparkdlCommError | None = None

    def wait(self) -> Pushed:
        """What became of it.

        :raises DeadlineError: that is not known within ``spark.sparkdl.comm.timeout``.
        :raises SparkdlCommError: the job has ended meanwhile; why.
        """
        if not self._done.wait(self._timeout):
            raise DeadlineError(
                f"an update was neither applied nor dropped within {self._timeout:g} s; set {TIMEOUT_KEY}"
            )
        if isinstance(self._outcome, Pushed):
            return self._outcome
        raise self._outcome or GangError("the fabric's work is done")

    def settle(self, outcome: Pushed | SparkdlCommError | None) -> None:
        self._outcome = outcome
        self._done.set()


class WorkerPart(Part):
    """A worker's. ``timeout``: seconds that it waits for a model, or for what becomes of an update."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        self._elements = 0
        self._servers: list[int] = []
        self._version = 0
        self._updates: dict[int, np.ndarray] = {}
        self._pushes: dict[int, Push] = {}
        self._next = 0
        self._batch = -1
        self._model: np.ndarray | None = None
        self._missing = 0
        self._models: list[tuple[np.ndarray, int]] = []

    @property
    def elements(self) -> int:
        """Of the whole model."""
        return self._elements

    def add(self, server: int, update: np.ndarray, norm: float | None) -> tuple[Push, Ready]:
        """Takes a copy of ``update``, and says what to tell the scheduler. Arguments and errors are those of
        ``Worker.push``."""
        self._check_server(server)
        if update.shape != (self._elements,) or update.dtype != np.float32:
            raise InputError(
                f"an update must be float32 [{self._elements}], as the model, not {update.dtype} {list(update.shape)}"
            )
        # A sum is finite only if all are, unless they are so large that training has ended anyway.
        finite = math.isfinite(float(update.sum()))
        if not finite:
            norm = math.nan
        elif norm is None:
            norm = float(np.linalg.norm(update))
        with self._changed:
            self._check()
            number, self._next = self._next, self._next + 1
            self._updates[number] = update.copy()
            push = self._pushes[number] = Push(self._timeout)
            return push, Ready(number, self._version, norm)

    def await_model(self, model: np.ndarray) -> int:
        """After :class:`Wanted` was told: puts the model into ``model``; its version."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._models or self._over, self._timeout):
                raise DeadlineError(f"the model did not come within {self._timeout:g} s; set {TIMEOUT_KEY}")
            self._check()
            values, self._version = self._models.pop(0)
        np.copyto(model, values)
        return self._version

    def check_model(self, server: int, model: np.ndarray) -> Wanted:
        """What to tell the scheduler for the model. Arguments and errors are those of ``Worker.get``."""
        self._check_server(server)
        if model.shape != (self._elements,) or model.dtype != np.float32:
            raise InputError(
                f"the model is float32 [{self._elements}]; it cannot be put into {model.dtype} {list(model.shape)}"
            )
        with self._changed:
            self._check()
        return Wanted()

    def _check_server(self, server: int) -> None:
        if server not in self._servers:
            raise InputError(f"rank {server} is no server; there are {listed(self._servers)}")

    # ---- the daemon's part

    def arrived(self, arrival: Arrival) -> None:
        expected = arrival.expected
        with self._changed:
            if expected.batch != self._batch or self._model is None:
                self._batch, self._missing = expected.batch, self._elements
                self._model = np.empty(self._elements, np.float32)
            self._model[expected.offset : expected.offset + expected.elements] = arrival.values
            self._missing -= expected.elements
            if not self._missing:
                self._models.append((self._model, arrival.header.base_version))
                self._model = None
                self._changed.notify_all()
        self.tell(Ended(expected.transfer))

    def values(self, order: Send) -> Values | None:
        with self._changed:
            update = self._updates.get(order.update)
        if update is None:
            return None
        part = update[order.offset : order.offset + order.elements]
        scaled = part if order.scale == 1.0 else part * np.float32(order.scale)
        return Values(scaled, order.staleness, order.count)

    def hear(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._elements, self._servers = sum(message.elements), message.servers
        elif isinstance(message, Outcome):
            with self._changed:
                push = self._pushes.pop(message.update, None)
            if push is not None:
                push.settle(Pushed(message.version if message.version >= 0 else None, message.why))
        elif isinstance(message, Release):
            with self._changed:
                self._updates.pop(message.update, None)

    def end(self, error: SparkdlCommError | None) -> None:
        super().end(error)
        with self._changed:
            pushes, self._pushes = list(self._pushes.values()), {}
            self._updates.clear()
        for push in pushes:
            push.settle(error)
