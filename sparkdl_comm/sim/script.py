"""Plan in the form that the simulator runs: what each step waits for, and which step of another rank its message meets.

Ranks that do the same at the same times are *alike*, and one of them is run for all: one for a thousand in a ring or
BML. Ranks are alike if their steps have the same kinds, rails and lengths, wait for the same steps, and meet the same
steps of ranks that are alike. :func:`make_script` finds the classes by refining them until none is split further.

The times are alike, too, if ranks share no NIC and no trunk, and begin at once. Otherwise every rank is run. So it is
in a chain, which has ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from sparkdl_comm.collectives.plan import Plan, Step, StepKind, find_dependencies
from sparkdl_comm.errors import PlanError

#: (peer, rail, whether the step sends)
_Channel = tuple[int, int, bool]


@dataclass(frozen=True)
class RankProgram:
    """Program of a class of ranks, as its member ``rank`` runs it.

    :param waits: number of steps that each step waits for, including the previous one on its connection.
    :param followers: for each step, the steps that wait for it.
    :param mates: for each step, the part and the number of the step that it meets.
    """

    rank: int
    steps: tuple[Step, ...]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    mates: tuple[tuple[int, int], ...]

    @property
    def elements_sent(self) -> int:
        return sum(step.stop - step.start for step in self.steps if step.kind is StepKind.SEND)


@dataclass(frozen=True)
class Script:
    """Plan for the simulator. ``parts``: one per class of ranks. ``part_of``: the part of each rank."""

    parts: tuple[RankProgram, ...]
    part_of: tuple[int, ...]


def make_script(plan: Plan, marks: Sequence[Hashable]) -> Script:
    """Return the script of a plan.

    :param marks: one per rank. Ranks with different marks are not alike.
    :raises PlanError: a message is not received, or not sent.
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
    """Properties of a rank's program that decide whether it is like another's. It is small, since all ranks' outlines
    exist at once.

    :param shapes: known shapes and their numbers; new ones are added.
    """

    def __init__(self, plan: Plan, rank: int, shapes: dict[Hashable, int]) -> None:
        program = plan.program(rank)
        self.peers = array("i", (step.peer for step in program.steps))
        self.channels: dict[_Channel, array[int]] = {}
        names: dict[int, int] = {}
        shape: list[Hashable] = []
        for index, (step, before) in enumerate(zip(program.steps, find_dependencies(program), strict=True)):
            self.channels.setdefault(_channel(step), array("i")).append(index)
            name = names.setdefault(step.peer, len(names))
            shape.append((step.kind, step.rail, step.stop - step.start, name, before))
        self.shape = shapes.setdefault(tuple(shape), len(shapes))


def _channel(step: Step) -> _Channel:
    return step.peer, step.rail, step.kind is StepKind.SEND


def _mates(plan: Plan, outlines: Sequence[_Outline], rank: int) -> array[int]:
    """Return for each step the number of the peer's step that it meets."""
    mates = array("i", bytes(4 * len(outlines[rank].peers)))
    for (peer, rail, sends), own_steps in outlines[rank].channels.items():
        peer_steps = outlines[peer].channels.get((rank, rail, not sends), array("i"))
        if len(own_steps) != len(peer_steps):
            problem = (
                f"rank {rank} has {len(own_steps)} steps with rank {peer} over rail {rail}, which has {len(peer_steps)}"
            )
            raise PlanError(f"{plan}: {problem}")
        for own_index, peer_index in zip(own_steps, peer_steps, strict=True):
            mates[own_index] = peer_index
    return mates


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Number the values: equal values get equal numbers, from 0 in the order of first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(value, len(seen)) for value in values]


def _part(
    plan: Plan, rank: int, outlines: Sequence[_Outline], mates: Sequence[array[int]], classes: Sequence[int]
) -> RankProgram:
    program = plan.program(rank)
    waits: list[int] = []
    followers: list[list[int]] = [[] for _ in program.steps]
    last: dict[_Channel, int] = {}
    for index, (step, before) in enumerate(zip(program.steps, find_dependencies(program), strict=True)):
        on_connection = last.get(_channel(step))
        last[_channel(step)] = index
        others = set(before) if on_connection is None else {*before, on_connection}
        waits.append(len(others))
        for other in sorted(others):
            followers[other].append(index)
    mate_pairs = zip(map(classes.__getitem__, outlines[rank].peers), mates[rank], strict=True)
    return RankProgram(rank, program.steps, tuple(waits), tuple(map(tuple, followers)), tuple(mate_pairs))
