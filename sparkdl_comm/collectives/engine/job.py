"""Collective under way at one rank: its steps that are ready, and its end."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from sparkdl_comm.collectives.engine.memory import Memory
from sparkdl_comm.collectives.plan import Plan, Step, find_dependencies
from sparkdl_comm.errors import DeadlineError, SparkdlCommError
from sparkdl_comm.gang.frames import TIMEOUT_KEY

#: (peer, rail)
Channel = tuple[int, int]

#: Header of a message: number of the collective, checksum of its description, bytes that follow.
HEADER = struct.Struct("!IIQ")


@dataclass(frozen=True)
class SocketPlan:
    """Plan that rank ``rank`` can run any number of times.

    ``waits``: number of steps that each step waits for. ``followers``: the steps that wait for each step.
    """

    plan: Plan
    rank: int
    steps: tuple[Step, ...]
    scratch: int
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, plan: Plan, rank: int) -> SocketPlan:
        program = plan.program(rank)
        predecessors = find_dependencies(program)
        followers: list[list[int]] = [[] for _ in predecessors]
        for index, others in enumerate(predecessors):
            for other in others:
                followers[other].append(index)
        waits = tuple(map(len, predecessors))
        return cls(plan, rank, program.steps, program.scratch, waits, tuple(map(tuple, followers)))

    @property
    def channels(self) -> set[Channel]:
        return {(step.peer, step.rail) for step in self.steps}


class Job:
    """:class:`~sparkdl_comm.collectives.engine.base.Work` of the socket engine.

    ``number``: number of the collective, the same on all ranks. ``op``: as in :class:`Memory`. ``cancel``: function
    that :meth:`cancel` calls.
    """

    def __init__(
        self, number: int, prepared: SocketPlan, tensor: torch.Tensor, op: str, cancel: Callable[[Job], None]
    ) -> None:
        self.number = number
        self.prepared = prepared
        self.memory = Memory(tensor, prepared.scratch, op)
        self.error: SparkdlCommError | None = None
        plan = prepared.plan
        self.name = f"{plan} of {tensor.dtype}, {op} (collective number {number})"
        self._identity = zlib.crc32(f"{plan} root {plan.collective.root} {tensor.dtype} {op}".encode())
        self._waits = list(prepared.waits)
        self._steps_left = len(prepared.steps)
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callback: Callable[[Job], object] | None = None
        self._tensor, self._cancel = tensor, cancel

    def is_ready(self, index: int) -> bool:
        return self._waits[index] == 0

    def header(self, index: int) -> bytes:
        """Return the header of the message of step ``index``: the same at the sender and the receiver."""
        step = self.prepared.steps[index]
        return HEADER.pack(self.number % 2**32, self._identity, (step.stop - step.start) * self.memory.itemsize)

    def complete(self, index: int) -> Iterable[int]:
        """Mark step ``index`` as complete and return the steps that have become ready."""
        self._steps_left -= 1
        ready = []
        for follower in self.prepared.followers[index]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                ready.append(follower)
        return ready

    @property
    def is_complete(self) -> bool:
        return self._steps_left == 0

    def end(self, error: SparkdlCommError | None = None) -> None:
        """End the collective and wake the threads that wait for it."""
        if error is None:
            self.memory.finish(self.prepared.plan.collective.world)
        with self._lock:
            self.error = error
            self._done.set()
        if self._callback is not None:
            self._callback(self)

    @property
    def is_over(self) -> bool:
        return self._done.is_set()

    def then(self, callback: Callable[[Job], object]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._callback = callback
                return
        callback(self)

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        if not self._done.wait(timeout):
            raise DeadlineError(
                f"{self.name} is not complete after {timeout:g} s; set {TIMEOUT_KEY}", phase="collective"
            )
        if self.error is not None:
            raise self.error
        return self._tensor

    def cancel(self) -> None:
        self._cancel(self)
