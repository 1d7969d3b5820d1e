"""A plan as the simulator runs it: what each step waits for, and which step of another rank its message meets.

Ranks that do the same at the same times are *alike*, and one of them is run for all: of a ring, or of BML, one for a thousand.
They are alike if their steps are of the same kinds, rails and lengths, wait for the same ones, and meet the same steps of
ranks that are alike themselves; :func:`script` finds that by refining classes until none falls apart. It holds for the times
too where ranks share no NIC and no trunk, and begin at once. Otherwise, and in a chain, which has ends, every rank is run.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from sparkdl_comm.collectives.plan import Kind, Plan, Step, dependencies
from sparkdl_comm.errors import PlanError

#: (peer, rail, whether the step sends)
_Channel = tuple[int, int, bool]


@dataclass(frozen=True)
class Part:
    """What the ranks of a class do, as ``rank``, one of them, does it.

    ``waits``: how many steps each step waits for, the one before it on its connection among them; ``followers``: those that
    wait for it. ``mates``: of each step, the part whose step it meets, and that step's number.
    """

    rank: int
    steps: tuple[Step, ...]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    mates: tuple[tuple[int, int], ...]

    @property
    def elements_sent(self) -> int:
        return sum(step.stop - step.start for step in self.steps if step.kind is Kind.SEND)


@dataclass(frozen=True)
class Script:
    """``parts``: one for each class of ranks; ``part_of``: the number of each rank's."""

    parts: tuple[Part, ...]
    part_of: tuple[int, ...]


def script(plan: Plan, marks: Sequence[Hashable]) -> Script:
    """The script of a plan.

    :param marks: one for each rank; those with different ones are not alike.
    :raises PlanError: a message that is not received, or not sent.
    """
    shapes: dict[Hashable, int] = {}
    outlines = [_Outline(plan, rank, shapes) for rank in range(plan.collective.world)]
    mates = [_mates(plan, outlines, rank) for rank in range(plan.collective.world)]
    seen = zip(marks, (outline.shape for outline in outlines), map(bytes, mates), strict=True)
    classes, finer = [-1], _numbered(seen)
    while max(finer) > max(classes):
        classes = finer
        finer = _numbered((classes[rank], *map(classes.__getitem__, one.peers)) for rank, one in enumerate(outlines))
    members = {part: rank for rank, part in reversed(list(enumerate(classes)))}
    parts = [_part(plan, members[part], outlines, mates, classes) for part in range(len(members))]
    return Script(tuple(parts), tuple(classes))


class _Outline:
    """Of a rank's program what tells whether it is like another one's, and no more: those of all ranks are held at once.

    :param shapes: numbers the shapes that were seen.
    """

    def __init__(self, plan: Plan, rank: int, shapes: dict[Hashable, int]) -> None:
        program = plan.program(rank)
        self.peers = array("i", (step.peer for step in program.steps))
        self.channels: dict[_Channel, array[int]] = {}
        names: dict[int, int] = {}
        shape: list[Hashable] = []
        for index, (step, before) in enumerate(zip(program.steps, dependencies(program), strict=True)):
            self.channels.setdefault(_channel(step), array("i")).append(index)
            name = names.setdefault(step.peer, len(names))
            shape.append((step.kind, step.rail, step.stop - step.start, name, before))
        self.shape = shapes.setdefault(tuple(shape), len(shapes))


def _channel(step: Step) -> _Channel:
    return step.peer, step.rail, step.kind is Kind.SEND


def _mates(plan: Plan, outlines: Sequence[_Outline], rank: int) -> array[int]:
    """Of each step, the number of the peer's step that it meets."""
    found = array("i", bytes(4 * len(outlines[rank].peers)))
    for (peer, rail, sends), here in outlines[rank].channels.items():
        there = outlines[peer].channels.get((rank, rail, not sends), array("i"))
        if len(here) != len(there):
            told = f"rank {rank} has {len(here)} steps with rank {peer} over rail {rail}, which has {len(there)}"
            raise PlanError(f"{plan}: {told}")
        for mine, theirs in zip(here, there, strict=True):
            found[mine] = theirs
    return found


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Equal values have equal numbers, from 0 on in the order of their first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(value, len(seen)) for value in values]


def _part(
    plan: Plan, rank: int, outlines: Sequence[_Outline], mates: Sequence[array[int]], classes: Sequence[int]
) -> Part:
    program = plan.program(rank)
    waits: list[int] = []
    followers: list[list[int]] = [[] for _ in program.steps]
    last: dict[_Channel, int] = {}
    for index, (step, before) in enumerate(zip(program.steps, dependencies(program), strict=True)):
        on_connection = last.get(_channel(step))
        last[_channel(step)] = index
        others = set(before) if on_connection is None else {*before, on_connection}
        waits.append(len(others))
        for other in sorted(others):
            followers[other].append(index)
    met = zip(map(classes.__getitem__, outlines[rank].peers), mates[rank], strict=True)
    return Part(rank, program.steps, tuple(waits), tuple(map(tuple, followers)), tuple(met))
