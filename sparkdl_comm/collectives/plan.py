"""What a plan is: for each rank a program, the steps that it takes in a collective. Pure.

A step sends a range of the rank's vector to a peer over a rail, or receives one, or receives one and combines it (adds, or
takes the minimum or maximum) with what is there. The program means what it does if its steps are taken one after the
other; but an engine takes steps at once, and in any order, as long as

1. a step that touches elements comes after the earlier ones that write them, and one that writes them also after the earlier
   ones that read them: :func:`dependencies`;
2. the messages from one rank to another over one rail are sent, and received, in the order of the program.

So results do not depend on timing, bit for bit, and a plan either always deadlocks or never (see ``transfers.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Literal, NamedTuple, get_args

from sparkdl_comm.errors import InputError
from sparkdl_comm.topology import Topology

Operation = Literal["all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class Kind(Enum):
    """What a step does with its range."""

    SEND = "send"
    RECEIVE = "receive"
    COMBINE = "receive and combine"


class Step(NamedTuple):
    """``kind`` with the elements from ``start`` up to ``stop``, ``peer`` being the other rank.

    Elements are counted through the rank's vector and on through its program's scratch memory.
    """

    kind: Kind
    peer: int
    rail: int
    start: int
    stop: int


class Program(NamedTuple):
    """One rank's part. ``scratch``: elements that it needs behind the vector, with any content.

    ``lead``: how many of the receives that precede it in the program a send may overtake. None: any, as long as data
    dependencies are kept. ``in_turn``: of the receives from these ranks, none overtakes another one.
    """

    steps: tuple[Step, ...]
    scratch: int = 0
    lead: int | None = None
    in_turn: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Collective:
    """What is asked for: ``operation`` on vectors of ``count`` elements.

    ``root``: the source of a broadcast; where a reduction ends. ``block``: elements per block, for algorithms that pipeline.

    =================  ============================================================================================
    ``all_reduce``     every rank ends with all vectors combined
    ``broadcast``      every rank ends with the root's vector
    ``reduce``         the root ends with all vectors combined; the others' are used up
    ``reduce_scatter`` every rank ends with all vectors combined in the ranges that it owns (:attr:`Plan.owned`)
    ``all_gather``     every rank ends with each range as the rank had it that owns it
    =================  ============================================================================================

    :raises InputError: a number out of range.
    """

    operation: Operation
    topology: Topology
    count: int
    root: int = 0
    block: int = 1

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InputError(f"operation {self.operation!r}: there are {', '.join(OPERATIONS)}")
        if self.count < 0 or self.block < 1 or not 0 <= self.root < self.topology.world:
            raise InputError(
                f"{self.operation} of {self.count} elements in blocks of {self.block} at root {self.root}: there are"
                f" ranks 0 to {self.topology.world - 1}, and a block has an element at least"
            )

    @property
    def world(self) -> int:
        return self.topology.world

    def rounds(self, least: int = 1) -> list[tuple[int, int]]:
        """The vector cut into ranges of ``block`` elements, and ``least``, or a few more; for :func:`pipelined`."""
        number = max(1, self.count // max(self.block, least))
        return [(cut(0, self.count, number, index), cut(0, self.count, number, index + 1)) for index in range(number)]


def _nothing(rank: int) -> list[tuple[int, int]]:
    return []


@dataclass(frozen=True)
class Plan:
    """How ``algorithm`` does a collective. ``program(rank)`` is that rank's part.

    ``owned(rank)``: the ranges, (start, stop), that a rank owns in reduce_scatter and all_gather; every element is owned by
    one rank.
    """

    algorithm: str
    collective: Collective
    program: Callable[[int], Program] = field(repr=False)
    owned: Callable[[int], list[tuple[int, int]]] = field(default=_nothing, repr=False)

    def __str__(self) -> str:
        asked = self.collective
        return f"{self.algorithm} {asked.operation} of {asked.count} elements on {asked.topology}"


def cut(start: int, stop: int, parts: int, index: int) -> int:
    """Where part ``index`` begins if ``start`` to ``stop`` is cut into ``parts`` that differ by one element at most."""
    return start + (stop - start) * index // parts


def pipelined(rounds: Sequence[list[list[Step]]]) -> list[Step]:
    """The steps of rounds that follow each other through the same stages, each one stage behind the one before it.

    In between two stages of a round come stages of others, so that NICs do not idle until what one stage needs of the last
    has arrived everywhere; and messages are small, so that a rank that is ahead cannot fill others' links for long.

    :param rounds: for each, the steps of its stages; no round touches what another one does.
    """
    timed = [(turn + number, -turn, steps) for turn, stages in enumerate(rounds) for number, steps in enumerate(stages)]
    return [step for *_, steps in sorted(timed, key=itemgetter(0, 1)) for step in steps]


def drop_empty_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps that move anything: with fewer elements than parts, some parts are empty, for sender and receiver alike."""
    return tuple(step for step in steps if step.start < step.stop)


def dependencies(program: Program) -> list[tuple[int, ...]]:
    """For each step, which earlier ones must be complete before it may begin: rule 1 of the module, and the program's own."""
    steps, lead = program.steps, program.lead
    received: list[int] = []
    in_turn: list[int] = []
    bounds = sorted({bound for step in steps for bound in (step.start, step.stop)})
    writer: list[int | None] = [None] * len(bounds)
    readers: list[list[int]] = [[] for _ in bounds]
    found = []
    for index, step in enumerate(steps):
        before: set[int] = set()
        for segment in range(bisect_left(bounds, step.start), bisect_left(bounds, step.stop)):
            last = writer[segment]
            if last is not None:
                before.add(last)
            if step.kind is Kind.SEND:
                readers[segment].append(index)
            else:
                before.update(readers[segment])
                writer[segment], readers[segment] = index, []
        if step.kind is not Kind.SEND:
            received.append(index)
            if step.peer in program.in_turn:
                before.update(in_turn[-1:])
                in_turn.append(index)
        elif lead is not None and len(received) > lead:
            before.add(received[-1 - lead])
        found.append(tuple(sorted(before)))
    return found
