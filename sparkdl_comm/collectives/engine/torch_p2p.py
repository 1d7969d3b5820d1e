"""Engine that runs plans by torch.distributed's sends and receives: over NCCL for CUDA tensors, over gloo for others.

Neither backend knows rails: all bytes take the path that the backend chose. A plan is cut into rounds of transfers that
do not depend on each other. Each round is one batch. NCCL needs batches: without them, two ranks that both send first
would wait for each other.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.plan import Plan, Step, StepKind
from sparkdl_comm.collectives.transfers import order_transfers
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.errors import InputError, SparkdlCommError

_COMBINE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.add,
    "mean": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}


@dataclass(frozen=True)
class TorchPlan:
    """Plan that one rank can run: its steps in each round, in an order that all ranks agree on."""

    plan: Plan
    steps: tuple[tuple[Step, ...], ...]
    scratch: int

    @classmethod
    def of(cls, plan: Plan, rank: int) -> TorchPlan:
        number: list[int] = []
        rounds: list[list[Step]] = []
        for transfer in order_transfers(plan):
            number.append(1 + max((number[other] for other in transfer.after), default=-1))
            if number[-1] == len(rounds):
                rounds.append([])
            if transfer.source == rank:
                rounds[number[-1]].append(transfer.send)
            if transfer.target == rank:
                rounds[number[-1]].append(transfer.receive)
        return cls(plan, tuple(map(tuple, filter(None, rounds))), plan.program(rank).scratch)


class TorchEngine:
    """:class:`~sparkdl_comm.collectives.engine.Engine` of one rank over torch.distributed.

    :param rank: this rank's number in the plans.
    :param order: ``order[place]``: the rank in torch.distributed's default group that is rank ``place`` of the plans.
    :param group: process group of these ranks, which the engine destroys at the end; None for the default group. Its
        timeout limits every wait here.
    """

    def __init__(
        self, rank: int, order: Sequence[int], device: torch.device, group: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.device = rank, device
        self._order, self._group = order, group

    def prepare(self, plan: Plan) -> TorchPlan:
        return TorchPlan.of(plan, self.rank)

    def start(self, prepared: TorchPlan, tensor: torch.Tensor, op: str = "sum") -> Work[torch.Tensor]:
        """Run a collective on ``tensor``, like :meth:`Engine.start`, but hand all of it to the backend before returning.

        The result has ended. With NCCL it will be complete before any later work in the CUDA stream. A wait for it has the
        process group's time limit instead of its own.

        :raises RuntimeError: torch's error for a peer that is lost or late.
        """
        if tensor.numel() != prepared.plan.collective.count or not tensor.is_contiguous():
            raise InputError(
                f"{prepared.plan}: the tensor must be contiguous and have that many elements. Its shape is"
                f" {list(tensor.shape)}"
            )
        if op not in _COMBINE_FUNCTIONS:
            raise InputError(f"op={op!r}: there are {', '.join(_COMBINE_FUNCTIONS)}")
        parts = tensor.detach().view(-1), tensor.new_empty(prepared.scratch)
        for steps in prepared.steps:
            self._run_round(steps, parts, _COMBINE_FUNCTIONS[op])
        if op == "mean":
            tensor.div_(prepared.plan.collective.world)
        work: Work[torch.Tensor] = Work(str(prepared.plan))
        work.set_result(tensor)
        return work.map(_synchronize)

    def abort(self, error: SparkdlCommError) -> None:
        """Do nothing: the default group's connections break with the gang, or its timeout ends the wait."""

    def close(self) -> None:
        """Destroy the engine's process group. The default group is not its own."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def _run_round(
        self, steps: Sequence[Step], parts: tuple[torch.Tensor, torch.Tensor], combine: Callable[..., Any]
    ) -> None:
        operations, combines = [], []
        messages: Counter[tuple[bool, int]] = Counter()  # number of messages so far in this round, by (sends, peer)
        for step in steps:
            target = self._view(step, parts)
            sends = step.kind is StepKind.SEND
            memory = torch.empty_like(target) if step.kind is StepKind.COMBINE else target
            if step.kind is StepKind.COMBINE:
                combines.append((target, memory))
            tag = messages[sends, step.peer]
            messages[sends, step.peer] += 1
            call = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(call, memory, self._order[step.peer], self._group, tag))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for target, received in combines:
            combine(target, received, out=target)

    def _view(self, step: Step, parts: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tensor, scratch = parts
        if step.start < len(tensor):
            return tensor[step.start : step.stop]
        return scratch[step.start - len(tensor) : step.stop - len(tensor)]


def process_group_of(ranks: Sequence[int], timeout: float) -> dist.ProcessGroup | None:
    """Return a new process group of these ranks of the default group; None if they are all its ranks.

    All of these ranks must call it. torch numbers them in the order of their numbers in the default group.

    :param timeout: seconds of each wait in the group.
    """
    if len(ranks) == dist.get_world_size():
        return None
    seconds = datetime.timedelta(seconds=timeout)
    group = dist.new_group(sorted(ranks), timeout=seconds, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)  # as this rank is in it
    return group


def _synchronize(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor once the work in its CUDA stream is complete."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor
