"""Hierarchical all-reduce over one NIC per host: BML's exchange, with groups of a Fat-Tree or hosts as rails.

Steps: 2(g-1) per level of groups of g members for an all-reduce, half as many for a reduce-scatter or an all-gather.
Bytes on the wire: 2(N-1)/N n from each rank for an all-reduce, which is the minimum; 1/(size of a group) of that leaves
a group.

1. aggregation: first among the ranks below one edge switch (or of one host), then between the edge switches of a pod,
   then between pods. At each level a rank handles the part that it has so far.
2. broadcast: the same steps backwards.

The BML paper compares BML with it on a Fat-Tree (Fig. 5, see ``bml.py``).
"""

from __future__ import annotations

from sparkdl_comm.collectives.algorithms.levels import Exchange, make_levels
from sparkdl_comm.collectives.plan import SCATTERED, Algorithm, Collective, Plan, Program, drop_empty_steps
from sparkdl_comm.topology import Topology


def group_radices(topology: Topology) -> tuple[int, ...]:
    """Return the sizes of the groups, innermost first. The result has one entry if the topology has no groups."""
    if topology.ranks_per_host > 1:
        return topology.ranks_per_host, len(topology.hosts)
    if topology.trunks:
        half = sum(host.nics[0].switch == 0 for host in topology.hosts)
        return half, half, 2 * half
    return topology.radices


def plan(collective: Collective) -> Plan:
    radices = group_radices(collective.topology)
    levels = make_levels(radices, [0] * len(radices))

    def exchange(rank: int) -> Exchange:
        return Exchange(rank, levels, 0, collective.count)

    def program(rank: int) -> Program:
        stages = []
        if collective.operation != "all_gather":
            stages += exchange(rank).aggregate()
        if collective.operation != "reduce_scatter":
            stages += exchange(rank).broadcast()
        return Program(drop_empty_steps([step for steps in stages for step in steps]))

    return Plan("hierarchical", collective, program, lambda rank: [exchange(rank).own])


def _needs_groups(topology: Topology) -> str:
    if topology.rails == 1 and len(group_radices(topology)) > 1:
        return ""
    return f"{topology.text} has no groups of ranks behind one NIC each. Use a Fat-Tree or hosts:MxS"


ALGORITHM = Algorithm("hierarchical", plan, SCATTERED, _needs_groups)
