"""Ring.

Steps: 2(N-1) for an all-reduce, N-1 for a reduce-scatter or an all-gather.
Bytes on the wire: 2(N-1)/N n over each link and direction for an all-reduce, half of that for a reduce-scatter or an
all-gather.

1. reduce-scatter: in each step every rank sends a part to its successor and adds the part that arrives from its
   predecessor.
2. all-gather: the same with complete parts.

An all-reduce takes 2(N-1)(alpha + beta n/N) + (N-1) gamma n/N. On BCube the ring follows a cycle in which successors
share a switch, so only one rail of a host sends at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl_comm.collectives.plan import (
    SCATTERED,
    Algorithm,
    Collective,
    Plan,
    Program,
    Step,
    StepKind,
    drop_empty_steps,
    part_start,
)
from sparkdl_comm.errors import PlanError
from sparkdl_comm.topology import Topology


def rail_between(topology: Topology, one: int, other: int) -> int:
    """Return the rail over which two ranks reach each other directly; 0 for ranks of one host.

    :raises PlanError: no rail connects them directly.
    """
    digits, other_digits = (topology.digits(topology.host_of(rank).index) for rank in (one, other))
    different = [
        rail for rail, (digit, other_digit) in enumerate(zip(digits, other_digits, strict=True)) if digit != other_digit
    ]
    if len(different) > 1:
        raise PlanError(f"ranks {one} and {other} of {topology} share no switch")
    return different[0] if different else 0


class Ring:
    """Ring of ``members``: the steps of one member, ``rank``, over the range from ``start`` to ``stop``.

    The range is cut into one part per member, and member i owns part i. Each half of an all-reduce has len(members) - 1
    steps. In each step every member sends one part to its successor and receives another one from its predecessor.
    """

    def __init__(self, topology: Topology, members: Sequence[int], rank: int, start: int, stop: int) -> None:
        self._start, self._stop, self._parts = start, stop, len(members)
        self._position = members.index(rank)
        self._successor = members[(self._position + 1) % self._parts]
        self._predecessor = members[self._position - 1]
        self._rail_to_successor = rail_between(topology, rank, self._successor)
        self._rail_from_predecessor = rail_between(topology, rank, self._predecessor)

    def part(self, index: int) -> tuple[int, int]:
        """Return the range of part ``index``, taken modulo the number of members."""
        index %= self._parts
        start, stop = (part_start(self._start, self._stop, self._parts, i) for i in (index, index + 1))
        return start, stop

    @property
    def own(self) -> tuple[int, int]:
        return self.part(self._position)

    def reduce_scatter(self) -> list[Step]:
        """Return the steps of a reduce-scatter. Part j starts at member j + 1 and is complete when it reaches member j."""
        return self._round(StepKind.COMBINE, -1)

    def all_gather(self) -> list[Step]:
        """Return the steps of an all-gather. Part j starts at member j."""
        return self._round(StepKind.RECEIVE, 0)

    def _round(self, kind: StepKind, first: int) -> list[Step]:
        steps = []
        for turn in range(self._parts - 1):
            sent_part = self._position + first - turn
            steps.append(Step(StepKind.SEND, self._successor, self._rail_to_successor, *self.part(sent_part)))
            steps.append(Step(kind, self._predecessor, self._rail_from_predecessor, *self.part(sent_part - 1)))
        return steps


def plan(collective: Collective) -> Plan:
    cycle = collective.topology.cycle()

    def ring(rank: int) -> Ring:
        return Ring(collective.topology, cycle, rank, 0, collective.count)

    def program(rank: int) -> Program:
        steps = []
        if collective.operation != "all_gather":
            steps += ring(rank).reduce_scatter()
        if collective.operation != "reduce_scatter":
            steps += ring(rank).all_gather()
        return Program(drop_empty_steps(steps))

    return Plan("ring", collective, program, lambda rank: [ring(rank).own])


ALGORITHM = Algorithm("ring", plan, SCATTERED)
