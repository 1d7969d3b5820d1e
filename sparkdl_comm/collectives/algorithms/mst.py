"""Minimum spanning tree.

Steps: ceil(log2 N) for a broadcast or a reduce, twice that for an all-reduce.
Bytes on the wire: n in each step; ceil(log2 N) n over the root's link, in each direction in an all-reduce.

1. broadcast: the ranks are cut into two halves. The rank that has the vector sends it to the first rank of the other
   half. Then each half does the same.
2. reduce: the same steps backwards, adding the vectors that arrive.
3. all-reduce: reduce to rank 0, then broadcast.

A broadcast takes log N (alpha + beta n), and a reduce log N gamma n more: Table 1 of Linnan Wang, Wei Wu, George
Bosilca, Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural Networks", 2016.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkdl_comm.collectives.plan import (
    Algorithm,
    Collective,
    Plan,
    Program,
    Step,
    StepKind,
    drop_empty_steps,
    needs_one_rail,
)


def halvings(place: int, world: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the cuts that ``place`` takes part in, widest first: (first, middle, end, peer).

    ``first`` has the data of the places from ``first`` to ``end``. It hands over the data from ``middle`` on, to
    ``middle``. ``peer`` is the partner of ``place``: ``first`` or ``middle``.
    """
    first, end = 0, world
    while end - first > 1:
        middle = (first + end + 1) // 2
        if place in (first, middle):
            yield first, middle, end, middle if place == first else first
        if place < middle:
            end = middle
        else:
            first = middle


def plan(collective: Collective) -> Plan:
    world, count = collective.world, collective.count
    root = collective.root if collective.operation != "all_reduce" else 0

    def program(rank: int) -> Program:
        place = (rank - root) % world
        down = []
        for first, _, _, peer in halvings(place, world):
            kind = StepKind.SEND if place == first else StepKind.RECEIVE
            down.append(Step(kind, (peer + root) % world, 0, 0, count))
        reversed_kind = {StepKind.SEND: StepKind.COMBINE, StepKind.RECEIVE: StepKind.SEND}
        up = [step._replace(kind=reversed_kind[step.kind]) for step in reversed(down)]
        steps = {"broadcast": down, "reduce": up, "all_reduce": up + down}[collective.operation]
        return Program(drop_empty_steps(steps))

    return Plan("mst", collective, program)


ALGORITHM = Algorithm("mst", plan, ("all_reduce", "broadcast", "reduce"), needs_one_rail)
