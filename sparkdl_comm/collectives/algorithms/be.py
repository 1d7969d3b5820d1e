"""Bidirectional exchange: scatter and all-gather, reduce-scatter and gather.

Steps: 2 ceil(log2 N) for an all-reduce, a broadcast or a reduce, half as many for a reduce-scatter or an all-gather.
Bytes on the wire: 2(N-1)/N n over each link and direction for an all-reduce, half of that for a reduce-scatter or an
all-gather.

The vector is cut into N parts, and part i belongs to rank i. A range of parts that wraps around behind the last part
takes two messages.

1. reduce-scatter: ceil(log2 N) steps. Each step halves the range that a rank works on (recursive halving).
2. all-gather: the same steps backwards (recursive doubling).
3. scatter, gather: along the halves of a minimum spanning tree.
4. all-reduce = reduce-scatter + all-gather; broadcast = scatter + all-gather; reduce = reduce-scatter + gather.

An all-reduce takes 2 log N alpha + 2 (N-1)/N n beta + (N-1)/N n gamma: Table 1 of Linnan Wang, Wei Wu, George Bosilca,
Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural Networks", 2016. In the paper, N is
a power of two and partners exchange parts. Here rank r sends to r + s and receives from r - s, for s = N/2, N/4, …,
each rounded up. That costs the same, moves no byte more, and works for all N (Jesper Larsson Träff: "Optimal,
Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024).

Beyond the papers: the vector is cut into rounds, which are pipelined. Partners change in each step. Without rounds, a
rank that is slightly out of step would send to a rank that is still receiving from another one. A reduce gathers after
all reduce-scatters, because pipelined gathers would collide at the root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from sparkdl_comm.collectives.algorithms.mst import halvings
from sparkdl_comm.collectives.plan import (
    OPERATIONS,
    Algorithm,
    Collective,
    Plan,
    Program,
    Step,
    StepKind,
    drop_empty_steps,
    needs_one_rail,
    part_start,
    pipeline_rounds,
)
from sparkdl_comm.topology import Topology


def plan(collective: Collective) -> Plan:
    rounds = [_RoundParts(collective, start, stop) for start, stop in collective.rounds(min_elements=collective.world)]

    def stages(parts: _RoundParts, rank: int) -> list[list[Step]]:
        operations: dict[str, Callable[[], list[list[Step]]]] = {
            "all_reduce": lambda: parts.reduce_scatter(rank) + parts.all_gather(rank),
            "reduce_scatter": lambda: parts.reduce_scatter(rank),
            "all_gather": lambda: parts.all_gather(rank),
            "broadcast": lambda: [parts.scatter(rank), *parts.all_gather(rank)],
            "reduce": lambda: parts.reduce_scatter(rank),
        }
        return operations[collective.operation]()

    def program(rank: int) -> Program:
        steps = pipeline_rounds([stages(parts, rank) for parts in rounds])
        if collective.operation == "reduce":
            steps += [step for parts in rounds for step in parts.gather(rank)]
        return Program(drop_empty_steps(steps))

    return Plan("be", collective, program, lambda rank: [parts.own(rank) for parts in rounds])


class _RoundParts:
    """Range ``start`` to ``stop``, cut into parts: part i belongs to rank i."""

    def __init__(self, collective: Collective, start: int, stop: int) -> None:
        self._world, self._root = collective.world, collective.root
        self._start, self._stop = start, stop

    def own(self, rank: int) -> tuple[int, int]:
        return self._bound(rank), self._bound(rank + 1)

    def reduce_scatter(self, rank: int) -> list[list[Step]]:
        stages = []
        for distance, width in self._distances():
            target, source = (rank + distance) % self._world, (rank - distance) % self._world
            sends, combines = (
                self._steps(StepKind.SEND, target, target, width),
                self._steps(StepKind.COMBINE, source, rank, width),
            )
            stages.append(sends + combines)
        return stages

    def all_gather(self, rank: int) -> list[list[Step]]:
        stages = []
        for distance, width in reversed(list(self._distances())):
            target, source = (rank - distance) % self._world, (rank + distance) % self._world
            sends, receives = (
                self._steps(StepKind.SEND, target, rank, width),
                self._steps(StepKind.RECEIVE, source, source, width),
            )
            stages.append(sends + receives)
        return stages

    def scatter(self, rank: int) -> list[Step]:
        """Return the rank's steps that bring the parts from the root to their ranks."""
        steps = []
        place = (rank - self._root) % self._world
        for first, middle, end, peer in halvings(place, self._world):
            kind = StepKind.SEND if place == first else StepKind.RECEIVE
            steps += self._steps(kind, (peer + self._root) % self._world, middle + self._root, end - middle)
        return steps

    def gather(self, rank: int) -> list[Step]:
        """Return the rank's steps that bring the parts from their ranks to the root."""
        reversed_kind = {StepKind.SEND: StepKind.RECEIVE, StepKind.RECEIVE: StepKind.SEND}
        return [step._replace(kind=reversed_kind[step.kind]) for step in reversed(self.scatter(rank))]

    def _distances(self) -> Iterator[tuple[int, int]]:
        """Yield for each step of a reduce-scatter the distance to the receiver, in ranks, and the number of parts sent."""
        remaining = self._world
        while remaining > 1:
            distance = (remaining + 1) // 2
            yield distance, remaining - distance
            remaining = distance

    def _steps(self, kind: StepKind, peer: int, first: int, parts: int) -> list[Step]:
        """Return the steps for ``parts`` parts from part ``first`` on; part 0 follows the last part."""
        first %= self._world
        ranges = [(first, min(first + parts, self._world)), (0, first + parts - self._world)]
        return [Step(kind, peer, 0, self._bound(begin), self._bound(end)) for begin, end in ranges if begin < end]

    def _bound(self, part: int) -> int:
        return part_start(self._start, self._stop, self._world, part)


def _depth(topology: Topology) -> float:
    # Filling the pipeline takes one block time, and each rank sends two messages per block and halving.
    return 1 / (2 * math.ceil(math.log2(topology.world))) if topology.world > 1 else 0.0


ALGORITHM = Algorithm("be", plan, OPERATIONS, needs_one_rail, _depth)
