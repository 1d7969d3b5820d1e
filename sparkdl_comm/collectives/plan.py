"""Plans: for each rank a program, which lists the steps that the rank takes in a collective. Pure.

A step sends a range of the rank's vector to a peer over a rail, or receives one. A received range replaces the old
values, or is combined with them (sum, minimum or maximum). Running a program's steps one after another defines its
result. An engine may run steps at the same time and in any order, as long as

1. a step waits for all earlier steps that write its elements. A step that writes also waits for all earlier steps that
   read its elements. :func:`find_dependencies` lists them;
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

#: Operations of algorithms whose all-reduce is a reduce-scatter and an all-gather.
SCATTERED: tuple[Operation, ...] = ("all_reduce", "reduce_scatter", "all_gather")


def always_eligible(topology: Topology) -> str:
    return ""


def needs_one_rail(topology: Topology) -> str:
    return "" if topology.rails == 1 else f"its partners share no switch on {topology.text}"


def no_pipeline(topology: Topology) -> float:
    return 0.0


@dataclass(frozen=True)
class Algorithm:
    """Algorithm for collectives.

    ``plan``: function that returns the plan of a collective. ``why_ineligible(topology)``: reason why the algorithm cannot run
    there; empty if it can. ``depth(topology)``: time to fill the pipeline, in block times, divided by the messages per
    block and NIC. A chain of N ranks has N - 1. 0 means that the algorithm is not pipelined.
    """

    name: str
    plan: Callable[[Collective], Plan]
    operations: tuple[Operation, ...]
    why_ineligible: Callable[[Topology], str] = always_eligible
    depth: Callable[[Topology], float] = no_pipeline


Operation = Literal["all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class StepKind(Enum):
    """Kinds of steps."""

    SEND = "send"
    RECEIVE = "receive"
    COMBINE = "receive and combine"


class Step(NamedTuple):
    """Step of a program: ``kind`` applied to the elements from ``start`` up to ``stop``, with the rank ``peer``.

    Elements are numbered through the rank's vector, and on through its program's scratch memory.
    """

    kind: StepKind
    peer: int
    rail: int
    start: int
    stop: int


class Program(NamedTuple):
    """Steps of one rank.

    ``scratch``: elements of scratch memory behind the vector; their initial content does not matter. ``max_overtaken``: number
    of preceding receives that a send may overtake; None for any number that data dependencies allow. ``ordered_peers``:
    ranks; no receive from one of them overtakes another one.
    """

    steps: tuple[Step, ...]
    scratch: int = 0
    max_overtaken: int | None = None
    ordered_peers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Collective:
    """Request for a collective: ``operation`` on vectors of ``count`` elements.

    ``root``: source of a broadcast, destination of a reduce. ``block``: elements per block, for pipelined algorithms.

    - ``all_reduce``: every rank ends with the combination of all vectors.
    - ``broadcast``: every rank ends with the root's vector.
    - ``reduce``: the root ends with the combination of all vectors. The others' vectors are used up.
    - ``reduce_scatter``: every rank ends with the combination in its ranges (:attr:`Plan.owned_ranges`).
    - ``all_gather``: every rank ends with all ranges, each from the vector of its owner.

    :raises InputError: a number is out of range.
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
                f"{self.operation} of {self.count} elements in blocks of {self.block} at root {self.root}: the count must"
                f" be at least 0, the block at least 1, and the root from 0 to {self.topology.world - 1}"
            )

    @property
    def world(self) -> int:
        return self.topology.world

    def rounds(self, min_elements: int = 1) -> list[tuple[int, int]]:
        """Return the vector cut into ranges of ``block`` elements or a few more, and at least ``min_elements``.

        :func:`pipeline_rounds` takes them.
        """
        number = max(1, self.count // max(self.block, min_elements))
        return [
            (part_start(0, self.count, number, index), part_start(0, self.count, number, index + 1))
            for index in range(number)
        ]


def _no_ranges(rank: int) -> list[tuple[int, int]]:
    return []


@dataclass(frozen=True)
class Plan:
    """Programs by which the ranks run a collective with ``algorithm``. ``program(rank)`` returns a rank's program.

    ``owned_ranges(rank)``: ranges (start, stop) that a rank owns in reduce_scatter and all_gather. Each element has one owner.
    """

    algorithm: str
    collective: Collective
    program: Callable[[int], Program] = field(repr=False)
    owned_ranges: Callable[[int], list[tuple[int, int]]] = field(default=_no_ranges, repr=False)

    def __str__(self) -> str:
        asked = self.collective
        return f"{self.algorithm} {asked.operation} of {asked.count} elements on {asked.topology}"


def part_start(start: int, stop: int, parts: int, index: int) -> int:
    """Return the start of part ``index`` when ``start`` to ``stop`` is cut into ``parts`` parts.

    The lengths of the parts differ by at most one element.
    """
    return start + (stop - start) * index // parts


def pipeline_rounds(rounds: Sequence[list[list[Step]]]) -> list[Step]:
    """Return the steps of rounds that pass through the same stages, each round one stage behind the previous one.

    While the data of one round is on its way between two stages, other rounds keep the NICs busy. Messages are small,
    so a rank that is ahead cannot fill the links of others for long.

    :param rounds: for each round, the steps of its stages. No round touches the elements of another one.
    """
    timed = [(turn + number, -turn, steps) for turn, stages in enumerate(rounds) for number, steps in enumerate(stages)]
    return [step for *_, steps in sorted(timed, key=itemgetter(0, 1)) for step in steps]


def drop_empty_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that move at least one element.

    If a range has fewer elements than parts, some parts are empty, for the sender and for the receiver.
    """
    return tuple(step for step in steps if step.start < step.stop)


def find_dependencies(program: Program) -> list[tuple[int, ...]]:
    """Return for each step the earlier steps that must be complete before it may begin.

    They follow from rule 1 of the module and from the program's ``max_overtaken`` and ``ordered_peers``.
    """
    steps, max_overtaken = program.steps, program.max_overtaken
    received: list[int] = []
    ordered_peers: list[int] = []
    bounds = sorted({bound for step in steps for bound in (step.start, step.stop)})
    writer: list[int | None] = [None] * len(bounds)
    readers: list[list[int]] = [[] for _ in bounds]
    result = []
    for index, step in enumerate(steps):
        predecessors: set[int] = set()
        for segment in range(bisect_left(bounds, step.start), bisect_left(bounds, step.stop)):
            last = writer[segment]
            if last is not None:
                predecessors.add(last)
            if step.kind is StepKind.SEND:
                readers[segment].append(index)
            else:
                predecessors.update(readers[segment])
                writer[segment], readers[segment] = index, []
        if step.kind is not StepKind.SEND:
            received.append(index)
            if step.peer in program.ordered_peers:
                predecessors.update(ordered_peers[-1:])
                ordered_peers.append(index)
        elif max_overtaken is not None and len(received) > max_overtaken:
            predecessors.add(received[-1 - max_overtaken])
        result.append(tuple(sorted(predecessors)))
    return result
