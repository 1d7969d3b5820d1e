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

from sparkdl_comm.collectives.algorithms.groups import Ring
from sparkdl_comm.collectives.plan import SCATTERED, Algorithm, Collective, Plan, Program, drop_empty_steps


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
