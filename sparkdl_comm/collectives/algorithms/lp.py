"""Linear pipeline: ranks form a chain, and the vector flows through it in blocks.

Steps: N - 1 + n/b of b bytes for a broadcast or a reduce, at most twice that for an all-reduce, else (N-1)/N n/b.
Bytes on the wire: n over each link, in each direction in which it is used; (N-1)/N n for a reduce-scatter or an
all-gather.

For large n the time does not depend on N.

1. reduce: every rank adds its own block j and passes it on towards the root, while it receives block j + 1.
2. broadcast: the same without adding, from the root along the path of a reduce in reverse.
3. all-reduce: reduce along the chain. As soon as a block is complete at the end of the chain, it flows back. So the
   pipeline fills only once: 4 blocks on 3 ranks take 9 steps, where a reduce and then a broadcast take 10.

In an all-reduce the first rank sends in one direction only. It could send twice as fast as the next rank passes on what
arrives from both sides. It would fill the next rank's port, and the switch would drop packets. So it is never more than
N - 1 blocks ahead of the blocks that come back.

A reduce leaves the link from the root idle. A sequence of reduces with changing roots would use all links evenly. But
each link would idle while a pipeline passes that does not use it, unless that pipeline is short. Instead:

4. reduce-scatter: a reduce to each rank, of its part, all at once. A rank begins with the part whose pipeline it
   starts, and ends with its own.
5. all-gather: a broadcast of each rank's part, all at once. A rank begins with its own part and sends it to the next
   rank.

Both are a ring whose parts travel in blocks: a rank passes on the first blocks of a part while the rest is on its way.
A reduce-scatter and an all-gather add in another order than the all-reduce.

The best block has sqrt(n alpha / ((N-1) beta)) bytes. On BCube the chain follows a cycle in which successors share a
switch.

Linnan Wang, Wei Wu, George Bosilca, Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural
Networks", 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from sparkdl_comm.collectives.algorithms.ring import Ring, rail_between
from sparkdl_comm.collectives.plan import SCATTERED, Algorithm, Collective, Plan, Program, Step, StepKind
from sparkdl_comm.topology import Topology


def plan(collective: Collective) -> Plan:
    return (
        _plan_pipeline_per_rank if collective.operation in ("reduce_scatter", "all_gather") else _plan_one_pipeline
    )(collective)


def _plan_one_pipeline(collective: Collective) -> Plan:
    """Return the plan of one linear pipeline: a reduce or a broadcast along the chain of ranks.

    An all-reduce is a reduce along the chain and a broadcast back. The broadcast of a block begins when its sum is
    complete.
    """
    chain, block, count = _make_chain(collective), collective.block, collective.count
    blocks = [(start, min(start + block, count)) for start in range(0, count, block)]

    def program(rank: int) -> Program:
        place, end = chain.index(rank), len(chain) - 1
        is_first_of_a_loop = place == 0 and collective.operation == "all_reduce"
        # (turn at which block 0 passes, kind of step, peer's place in the chain); block j passes j turns later.
        passing = [(place - 1, _receive_kind(collective), place - 1), (place, StepKind.SEND, place + 1)]
        if collective.operation == "all_reduce":
            passing += [(2 * end - place - 1, StepKind.RECEIVE, place + 1), (2 * end - place, StepKind.SEND, place - 1)]
        timed = []
        for turn, kind, other in passing:
            if 0 <= other <= end:
                rail = rail_between(collective.topology, rank, chain[other])
                for number, bounds in enumerate(blocks):
                    timed.append((turn + number, turn, Step(kind, chain[other], rail, *bounds)))
        timed.sort(key=lambda entry: entry[:2])
        return Program(tuple(step for *_, step in timed), max_overtaken=end if is_first_of_a_loop else None)

    return Plan("lp", collective, program)


def _plan_pipeline_per_rank(collective: Collective) -> Plan:
    """Return the plan with a pipeline for each rank's part."""
    cycle = collective.topology.cycle()

    def ring(rank: int) -> Ring:
        return Ring(collective.topology, cycle, rank, 0, collective.count)

    def steps(rank: int) -> Iterator[Step]:
        turns = ring(rank).reduce_scatter() if collective.operation == "reduce_scatter" else ring(rank).all_gather()
        for send, receive in zip(turns[::2], turns[1::2], strict=True):
            for pair in zip_longest(
                _split_into_blocks(send, collective.block), _split_into_blocks(receive, collective.block)
            ):
                yield from filter(None, pair)

    return Plan("lp", collective, lambda rank: Program(tuple(steps(rank))), lambda rank: [ring(rank).own])


def _split_into_blocks(step: Step, block: int) -> Iterator[Step]:
    for start in range(step.start, step.stop, block):
        yield step._replace(start=start, stop=min(start + block, step.stop))


def _receive_kind(collective: Collective) -> StepKind:
    return StepKind.RECEIVE if collective.operation == "broadcast" else StepKind.COMBINE


def _make_chain(collective: Collective) -> list[int]:
    """Return the ranks in the order of the chain. A reduce ends at the root, and a broadcast begins there."""
    cycle = collective.topology.cycle()
    if collective.operation == "all_reduce":
        return cycle
    behind = cycle.index(collective.root) + 1
    chain = cycle[behind:] + cycle[:behind]
    return chain if collective.operation == "reduce" else chain[::-1]


def _depth(topology: Topology) -> float:
    return topology.world - 1.0


ALGORITHM = Algorithm("lp", plan, (*SCATTERED, "broadcast", "reduce"), depth=_depth)
