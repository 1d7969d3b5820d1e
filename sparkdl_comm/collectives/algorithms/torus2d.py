"""2D torus: ranks in R rows and C columns, with a ring in each row and column.

Steps: 2(R-1) + 2(C-1) for an all-reduce (a ring takes 2(RC-1)), half as many for a reduce-scatter or an all-gather.
Bytes on the wire: 2(N-1)/N n from each rank, as in a ring. If ranks share a NIC, only the bytes of the columns leave
the host.

1. reduce-scatter along the row: every rank has one part, summed over its row.
2. all-reduce of that part along the column.
3. all-gather along the row.

A row is the ranks of a host, or level 0 of a BCube. Otherwise the torus is as close to a square as the number of ranks
allows.

2DTAR in Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of Deep Learning on
Public Cloud Clusters", 2021.
"""

from __future__ import annotations

import math

from sparkdl_comm.collectives.algorithms.ring import Ring
from sparkdl_comm.collectives.plan import SCATTERED, Algorithm, Collective, Plan, Program, drop_empty_steps
from sparkdl_comm.topology import Topology


def row_length(topology: Topology) -> int:
    if topology.ranks_per_host > 1:
        return topology.ranks_per_host
    if topology.rails > 1:
        return topology.radices[0]
    return max(size for size in range(1, math.isqrt(topology.world) + 1) if topology.world % size == 0)


def plan(collective: Collective) -> Plan:
    topology, world = collective.topology, collective.world
    length = row_length(topology)

    def rings(rank: int) -> tuple[Ring, Ring]:
        first = rank - rank % length
        row = Ring(topology, range(first, first + length), rank, 0, collective.count)
        return row, Ring(topology, range(rank % length, world, length), rank, *row.own)

    def program(rank: int) -> Program:
        row, column = rings(rank)
        steps = []
        if collective.operation != "all_gather":
            steps += row.reduce_scatter() + column.reduce_scatter()
        if collective.operation != "reduce_scatter":
            steps += column.all_gather() + row.all_gather()
        return Program(drop_empty_steps(steps))

    return Plan("torus2d", collective, program, lambda rank: [rings(rank)[1].own])


def _needs_two_rails(topology: Topology) -> str:
    return (
        "" if topology.rails <= 2 else f"{topology.text} has {topology.rails} rails, but the torus has two dimensions"
    )


ALGORITHM = Algorithm("torus2d", plan, SCATTERED, _needs_two_rails)
