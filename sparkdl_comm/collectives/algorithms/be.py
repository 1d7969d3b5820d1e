"""Bidirectional exchange: scatter and all-gather, reduce-scatter and gather.

Steps: 2 ceil(log2 N) for an all-reduce, a broadcast or a reduce, half as many for a reduce-scatter or an all-gather.
Bytes on the wire: 2(N-1)/N n over each link and direction for an all-reduce, half of that for its halves.

The vector is cut into N parts; part i belongs to rank i. A range of parts that goes on past the last one is two messages.

1. reduce-scatter: ceil(log2 N) steps, each of which halves what a rank works on (recursive halving);
2. all-gather: the same backwards (recursive doubling);
3. scatter, gather: along the halves of a minimum spanning tree;
4. all-reduce = reduce-scatter + all-gather; broadcast = scatter + all-gather; reduce = reduce-scatter + gather.

Time of an all-reduce 2 log N alpha + 2 (N-1)/N n beta + (N-1)/N n gamma: Table 1 of Linnan Wang, Wei Wu, George
Bosilca, Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural Networks", 2016. For N a
power of two, partners exchange. For any other N rank r sends to r + s and receives from r - s instead, for s = N/2,
N/4, …, each rounded up, which costs the same and moves no byte more; so it does for all N (Jesper Larsson Träff:
"Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024).

Beyond the papers: the vector is cut into rounds, which are pipelined. Partners change in each step, and otherwise a
rank that is slightly out of step would send to one that is still receiving from another. A reduce gathers after all
scatters: pipelined gathers would collide at the root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sparkdl_comm.collectives.algorithms.base import Algorithm, one_rail, register
from sparkdl_comm.collectives.algorithms.mst import halvings
from sparkdl_comm.collectives.plan import (
    OPERATIONS,
    Collective,
    Kind,
    Plan,
    Program,
    Step,
    cut,
    drop_empty_steps,
    pipelined,
)
from sparkdl_comm.topology import Topology


def plan(collective: Collective) -> Plan:
    rounds = [_Parts(collective, start, stop) for start, stop in collective.rounds(least=collective.world)]

    def stages(parts: _Parts, rank: int) -> list[list[Step]]:
        return {
            "all_reduce": lambda: parts.reduce_scatter(rank) + parts.all_gather(rank),
            "reduce_scatter": lambda: parts.reduce_scatter(rank),
            "all_gather": lambda: parts.all_gather(rank),
            "broadcast": lambda: [parts.scatter(rank), *parts.all_gather(rank)],
            "reduce": lambda: parts.reduce_scatter(rank),
        }[collective.operation]()

    def program(rank: int) -> Program:
        steps = pipelined([stages(parts, rank) for parts in rounds])
        if collective.operation == "reduce":
            steps += [step for parts in rounds for step in parts.gather(rank)]
        return Program(drop_empty_steps(steps))

    return Plan("be", collective, program, lambda rank: [parts.own(rank) for parts in rounds])


class _Parts:
    """The range ``start`` to ``stop``, of which part i belongs to rank i."""

    def __init__(self, collective: Collective, start: int, stop: int) -> None:
        self._world, self._root = collective.world, collective.root
        self._start, self._stop = start, stop

    def own(self, rank: int) -> tuple[int, int]:
        return self._bound(rank), self._bound(rank + 1)

    def reduce_scatter(self, rank: int) -> list[list[Step]]:
        stages = []
        for skip, width in self._skips():
            to, source = (rank + skip) % self._world, (rank - skip) % self._world
            sends, combines = self._steps(Kind.SEND, to, to, width), self._steps(Kind.COMBINE, source, rank, width)
            stages.append(sends + combines)
        return stages

    def all_gather(self, rank: int) -> list[list[Step]]:
        stages = []
        for skip, width in reversed(list(self._skips())):
            to, source = (rank - skip) % self._world, (rank + skip) % self._world
            sends, receives = self._steps(Kind.SEND, to, rank, width), self._steps(Kind.RECEIVE, source, source, width)
            stages.append(sends + receives)
        return stages

    def scatter(self, rank: int) -> list[Step]:
        """The parts from the root to their ranks."""
        steps = []
        place = (rank - self._root) % self._world
        for first, middle, end, peer in halvings(place, self._world):
            kind = Kind.SEND if place == first else Kind.RECEIVE
            steps += self._steps(kind, (peer + self._root) % self._world, middle + self._root, end - middle)
        return steps

    def gather(self, rank: int) -> list[Step]:
        """The parts from their ranks to the root."""
        turned = {Kind.SEND: Kind.RECEIVE, Kind.RECEIVE: Kind.SEND}
        return [step._replace(kind=turned[step.kind]) for step in reversed(self.scatter(rank))]

    def _skips(self) -> Iterator[tuple[int, int]]:
        """For each step of a reduce-scatter: how far a rank sends, and how many parts."""
        left = self._world
        while left > 1:
            skip = (left + 1) // 2
            yield skip, left - skip
            left = skip

    def _steps(self, kind: Kind, peer: int, first: int, parts: int) -> list[Step]:
        """``parts`` parts from ``first`` on, going on with part 0 after the last one."""
        first %= self._world
        ranges = [(first, min(first + parts, self._world)), (0, first + parts - self._world)]
        return [Step(kind, peer, 0, self._bound(begin), self._bound(end)) for begin, end in ranges if begin < end]

    def _bound(self, part: int) -> int:
        return cut(self._start, self._stop, self._world, part)


def _depth(topology: Topology) -> float:
    # A round fills the rail once; in it each rank sends two messages for each halving.
    return 1 / (2 * math.ceil(math.log2(topology.world))) if topology.world > 1 else 0.0


register(Algorithm("be", plan, OPERATIONS, one_rail, _depth))
