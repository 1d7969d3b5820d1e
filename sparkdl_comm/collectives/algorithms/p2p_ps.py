"""Peer-to-peer parameter server, the baseline of the BML paper (see ``bml.py``): every rank serves 1/N of the vector.

Steps: 2k on BCube(m, k). In each step a rank sends to its m - 1 neighbors on each rail. One switch is BCube(N, 1).
Bytes on the wire: 2(m-1)/m n over each link and direction, so 2(N-1)/N n on one switch.

1. push: every rank sends part y to server y, which adds the parts that arrive.
2. pull: server y sends its part to every rank.

On one switch all messages go directly. On BCube, ranks that differ in several digits have no link. Their messages go
through other ranks, which correct one digit per hop and pass each message on unchanged. Parts are cut in k as well, one
piece for each order of levels that BML uses, so that all rails are busy. For large m it takes twice as long as BML.

Beyond the paper: the vector is cut into rounds that follow each other through the steps, as in ``be.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from sparkdl_comm.collectives.algorithms.levels import Level, make_levels
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
    pipeline_rounds,
)
from sparkdl_comm.topology import Topology

#: Message as (source rank, target rank).
_Message = tuple[int, int]
#: Range of elements as (first, one after the last).
_Range = tuple[int, int]


def plan(collective: Collective) -> Plan:
    topology, count = collective.topology, collective.count
    levels = (
        make_levels(topology.radices, range(topology.rails))
        if topology.ranks_per_host == 1
        else [Level(topology.world, 1, 0)]
    )
    rounds = [_shares(start, stop, len(levels)) for start, stop in collective.rounds(topology.world * len(levels))]

    def stages(relay: _Relay, shares: list[_Range]) -> list[list[Step]]:
        """Return a round's stages, with the steps of all threads."""
        found = []
        for kind, part_of, skipped_operation in (
            (StepKind.COMBINE, _target, "all_gather"),
            (StepKind.RECEIVE, _origin, "reduce_scatter"),
        ):
            if collective.operation == skipped_operation:
                continue
            threads = [relay.route(kind, part_of, levels[t:] + levels[:t], share) for t, share in enumerate(shares)]
            found += [[step for steps in stage for step in steps] for stage in zip(*threads, strict=True)]
        return found

    def program(rank: int) -> Program:
        relay = _Relay(rank, count)
        steps = pipeline_rounds([stages(relay, shares) for shares in rounds])
        return Program(drop_empty_steps(steps), relay.scratch)

    def owned_ranges(rank: int) -> list[_Range]:
        return [_part(share, topology.world, rank) for shares in rounds for share in shares]

    return Plan("p2p-ps", collective, program, owned_ranges)


def _shares(start: int, stop: int, threads: int) -> list[_Range]:
    """Return the range of each thread."""
    return [(part_start(start, stop, threads, t), part_start(start, stop, threads, t + 1)) for t in range(threads)]


def _origin(message: _Message) -> int:
    return message[0]


def _target(message: _Message) -> int:
    return message[1]


class _Relay:
    """Steps of rank ``rank`` while every rank sends a message to every other rank.

    A message crosses one level at a time, so ranks also pass on messages of others.
    """

    def __init__(self, rank: int, count: int) -> None:
        self._rank, self._count = rank, count
        self.scratch = 0

    def route(
        self, arrival_kind: StepKind, part_of: Callable[[_Message], int], levels: list[Level], share: tuple[int, int]
    ) -> list[list[Step]]:
        """Return the steps over each of ``levels``, in their order.

        :param arrival_kind: kind of step by which the target receives a message.
        :param part_of: function that returns the index of a message's part of the range ``share``.
        """
        world = _world(levels)
        stored_ranges: dict[_Message, tuple[int, int]] = {}
        stages = []
        for number, level in enumerate(levels):
            own = level.digit(self._rank)
            steps = []
            for turn in range(1, level.radix):
                to = level.peer(self._rank, (own + turn) % level.radix)
                source = level.peer(self._rank, (own - turn) % level.radix)
                for message in _messages_between(levels, number, self._rank, to):
                    part = _part(share, world, part_of(message))
                    steps.append(Step(StepKind.SEND, to, level.rail, *stored_ranges.get(message, part)))
                for message in _messages_between(levels, number, source, self._rank):
                    part = _part(share, world, part_of(message))
                    if message[1] == self._rank:
                        steps.append(Step(arrival_kind, source, level.rail, *part))
                    else:
                        stored_ranges[message] = self._allocate_scratch(part[1] - part[0])
                        steps.append(Step(StepKind.RECEIVE, source, level.rail, *stored_ranges[message]))
            stages.append(steps)
        return stages

    def _allocate_scratch(self, count: int) -> tuple[int, int]:
        begin = self._count + self.scratch
        self.scratch += count
        return begin, begin + count


def _part(share: tuple[int, int], world: int, index: int) -> tuple[int, int]:
    return part_start(*share, world, index), part_start(*share, world, index + 1)


def _messages_between(levels: list[Level], number: int, sender: int, receiver: int) -> Iterator[_Message]:
    """Yield the messages that ``sender`` sends to ``receiver`` over level ``number``.

    Their sources differ from ``sender`` at most in the levels before, and their targets from ``receiver`` at most in the
    levels after.
    """
    for origin in _ranks_differing_in(sender, levels[:number]):
        for target in _ranks_differing_in(receiver, levels[number + 1 :]):
            yield origin, target


def _ranks_differing_in(rank: int, levels: list[Level]) -> Iterator[int]:
    """Yield ``rank``, and all ranks whose address differs from its address only in the digits of ``levels``."""
    for digits in itertools.product(*(range(level.radix) for level in levels)):
        other = rank
        for level, digit in zip(levels, digits, strict=True):
            other = level.peer(other, digit)
        yield other


def _world(levels: list[Level]) -> int:
    return math.prod(level.radix for level in levels)


def _depth(topology: Topology) -> float:
    # Filling the pipeline takes one block time. Per block, each rank sends two messages for each other rank.
    return 1 / (2 * (topology.world - 1)) if topology.world > 1 else 0.0


ALGORITHM = Algorithm("p2p-ps", plan, SCATTERED, depth=_depth)
