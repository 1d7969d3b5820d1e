"""Linear pipeline: ranks form a chain, the vector flows through it in blocks.

Steps: N - 1 + n/b for a broadcast or a reduce, each of b bytes; for an all-reduce twice that at most.
Bytes on the wire: n over each link, in each direction in which it is used; with n large the time does not depend on N.

1. reduce: every rank adds its own block j and passes it on, towards the root, while it receives block j + 1;
2. broadcast: the same without adding, and from the root back the way on which a reduce comes to it;
3. all-reduce: reduce along the chain, and as soon as a block is complete at its end it flows back, so that the pipe is
   filled once: 9 steps for 4 blocks on 3 ranks, where reduce and then broadcast take 10.

In an all-reduce the first rank sends one way only, twice as fast as the next one can pass on what comes from both sides. It
would fill that one's port, whose switch would drop packets; so it is ahead of what comes back by N - 1 blocks at most.

Pipelines that follow each other leave no gaps on the links if the root moves back by one rank from reduce to reduce, or on
by one from broadcast to broadcast: the rank that has nothing to pass on in one pipeline then begins the next. With any other
order of roots, a link is idle while the pipeline passes that does not use it.

The best block has sqrt(n alpha / ((N-1) beta)) bytes. On BCube the chain follows a cycle in which successors share a switch.

Linnan Wang, Wei Wu, George Bosilca, Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural
Networks", 2016.
"""

from __future__ import annotations

from sparkdl_comm.collectives.algorithms.base import Algorithm, register
from sparkdl_comm.collectives.algorithms.groups import rail_between
from sparkdl_comm.collectives.plan import Collective, Kind, Plan, Program, Step
from sparkdl_comm.topology import Topology


def plan(collective: Collective) -> Plan:
    chain, block, count = _chain(collective), collective.block, collective.count
    blocks = [(start, min(start + block, count)) for start in range(0, count, block)]

    def program(rank: int) -> Program:
        place, end = chain.index(rank), len(chain) - 1
        is_first_of_a_loop = place == 0 and collective.operation == "all_reduce"
        # When block 0 passes, and what the rank does with it; block j comes j turns later.
        passing = [(place - 1, _incoming(collective), place - 1), (place, Kind.SEND, place + 1)]
        if collective.operation == "all_reduce":
            passing += [(2 * end - place - 1, Kind.RECEIVE, place + 1), (2 * end - place, Kind.SEND, place - 1)]
        timed = []
        for turn, kind, other in passing:
            if 0 <= other <= end:
                rail = rail_between(collective.topology, rank, chain[other])
                for number, bounds in enumerate(blocks):
                    timed.append((turn + number, turn, Step(kind, chain[other], rail, *bounds)))
        timed.sort(key=lambda entry: entry[:2])
        return Program(tuple(step for *_, step in timed), lead=end if is_first_of_a_loop else None)

    return Plan("lp", collective, program)


def _incoming(collective: Collective) -> Kind:
    return Kind.RECEIVE if collective.operation == "broadcast" else Kind.COMBINE


def _chain(collective: Collective) -> list[int]:
    """The ranks in their order; a reduce ends at the root, a broadcast begins there."""
    cycle = collective.topology.cycle()
    if collective.operation == "all_reduce":
        return cycle
    behind = cycle.index(collective.root) + 1
    chain = cycle[behind:] + cycle[:behind]
    return chain if collective.operation == "reduce" else chain[::-1]


def _depth(topology: Topology) -> float:
    return topology.world - 1.0


register(Algorithm("lp", plan, ("all_reduce", "broadcast", "reduce"), depth=_depth))
