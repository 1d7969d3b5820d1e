"""Collective under way at one rank: its steps that are ready, and its end."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from sparkdl_comm.collectives.engine.memory import Memory
from sparkdl_comm.collectives.plan import Plan, Step, find_dependencies
from sparkdl_comm.collectives.work import Work

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


class Job(Work[torch.Tensor]):
    """Collective that the socket engine runs.

    ``number``: number of the collective, the same on all ranks. ``op``: as in :class:`Memory`. ``cancel``: function
    that :meth:`cancel` calls.
    """

    phase = "collective"

    def __init__(
        self, number: int, prepared: SocketPlan, tensor: torch.Tensor, op: str, cancel: Callable[[Job], None]
    ) -> None:
        plan = prepared.plan
        super().__init__(f"{plan} of {tensor.dtype}, {op} (collective number {number})")
        self.number = number
        self.prepared = prepared
        self.memory = Memory(tensor, prepared.scratch, op)
        self._identity = zlib.crc32(f"{plan} root {plan.collective.root} {tensor.dtype} {op}".encode())
        self._waits = list(prepared.waits)
        self._steps_left = len(prepared.steps)
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

    def finish(self) -> None:
        """End the collective, all of whose steps are complete."""
        self.memory.finish(self.prepared.plan.collective.world)
        self.set_result(self._tensor)

    def cancel(self) -> None:
        """End the collective with :class:`GangError`, unless it has ended. Waiting threads learn of it immediately.

        Peers may have sent a part of the collective already, which cannot be taken back. So the whole engine ends, on this
        rank and, because its connections close, on the peers.
        """
        self._cancel(self)
