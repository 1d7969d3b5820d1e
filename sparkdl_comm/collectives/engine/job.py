"""Collective under way at one rank: its memory, its steps that are ready, and its end."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparkdl_comm.collectives.plan import Plan, Step, find_dependencies
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.errors import InputError

#: Number of elements up to which torch adds without threads; see ATen's GRAIN_SIZE.
_SERIAL_ELEMENTS = 32767

#: Op -> functions of numpy and torch that combine two ranges. "mean" is a sum, divided at the end.
_COMBINE_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (np.add, torch.add),
    "mean": (np.add, torch.add),
    "min": (np.minimum, torch.minimum),
    "max": (np.maximum, torch.maximum),
}


class Memory:
    """Memory of one collective at one rank.

    ``tensor``: contiguous, on the CPU, of any shape. ``scratch``: elements behind it. ``op``: sum, mean, min or max.

    :raises InputError: the tensor is not contiguous or not on the CPU; ``op`` is unknown; the mean of integers; a
        complex or bool dtype.
    """

    def __init__(self, tensor: torch.Tensor, scratch: int, op: str) -> None:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise InputError(f"collectives over sockets need contiguous tensors on the CPU, not one on {tensor.device}")
        if op not in _COMBINE_FUNCTIONS:
            raise InputError(f"op={op!r}: there are {', '.join(_COMBINE_FUNCTIONS)}")
        if tensor.is_complex() or tensor.dtype is torch.bool or (op == "mean" and not tensor.is_floating_point()):
            raise InputError(f"op={op!r} of {tensor.dtype}: real numbers only, and a mean of floating point only")
        self.itemsize = tensor.element_size()
        self._tensor = tensor
        self._count = tensor.numel()
        parts = tensor.detach().view(-1), torch.empty(scratch, dtype=tensor.dtype)
        self._bytes = [part.view(torch.uint8).numpy().data for part in parts]
        self._addresses = [part.data_ptr() for part in parts]
        by_numpy, by_torch = _COMBINE_FUNCTIONS[op]
        self._is_mean = op == "mean"
        # numpy adds in the calling thread, but does not support bfloat16, and is slow with float16.
        self._uses_torch = tensor.dtype in (torch.float16, torch.bfloat16)
        self._parts: list[Any] = list(parts) if self._uses_torch else [part.numpy() for part in parts]
        self._dtype = tensor.dtype
        self._numpy_dtype = None if self._uses_torch else self._parts[0].dtype
        self._combine = by_torch if self._uses_torch else by_numpy

    def bytes(self, start: int, stop: int) -> memoryview:
        """Return the memory of the elements from ``start`` to ``stop``. The range must not cross from the tensor into
        the scratch.
        """
        part, offset = (0, 0) if start < self._count else (1, self._count)
        return self._bytes[part][(start - offset) * self.itemsize : (stop - offset) * self.itemsize]

    def address(self, start: int) -> int:
        """Return the address of element ``start`` in this process."""
        part, offset = (0, 0) if start < self._count else (1, self._count)
        return self._addresses[part] + (start - offset) * self.itemsize

    def combine(self, start: int, data: bytearray, size: int) -> None:
        """Combine the first ``size`` bytes of ``data``, whole elements, with the elements from ``start`` on."""
        part, offset = (0, 0) if start < self._count else (1, self._count)
        count = size // self.itemsize
        target = self._parts[part][start - offset : start - offset + count]
        if not self._uses_torch:
            self._combine(target, np.frombuffer(data, self._numpy_dtype, count), out=target)
            return
        source = torch.frombuffer(data, dtype=self._dtype, count=count)
        for mine, theirs in zip(
            torch.split(target, _SERIAL_ELEMENTS), torch.split(source, _SERIAL_ELEMENTS), strict=True
        ):
            self._combine(mine, theirs, out=mine)

    def finish(self, world: int) -> None:
        """Complete the collective: divide the sum by ``world`` if ``op`` is mean."""
        if self._is_mean:
            self._tensor.div_(world)


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
        """End the collective successfully. All its steps are complete."""
        self.memory.finish(self.prepared.plan.collective.world)
        self.set_result(self._tensor)

    def cancel(self) -> None:
        """End the collective with :class:`GangError`, unless it has ended. Waiting threads learn of it immediately.

        Peers may have sent a part of the collective already, which cannot be taken back. So the whole engine ends, on this
        rank and, because its connections close, on the peers.
        """
        self._cancel(self)
