"""Simulated collective: a plan that runs over a network.

A step begins when all steps that it waits for are complete. A sender does not check whether the receiver is ready: the
receiver holds an early message until its step begins. Combining takes the receiver the cost's gamma per byte.

Ranks that do the same at the same times are *alike*, and one of them is run for all: one for a thousand in a ring or
BML. Ranks are alike if their steps have the same kinds, rails and lengths, wait for the same steps, and meet the same
steps of ranks that are alike. :func:`make_script` finds the classes by refining them until none is split further.

The times are alike, too, if ranks share no NIC and no trunk, and begin at once. Otherwise every rank is run. So it is
in a chain, which has ends.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Plan, Step, StepKind, find_dependencies
from sparkdl_comm.errors import PlanError
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import QUEUE, Network, Path
from sparkdl_comm.topology import Topology

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
    """Properties of a rank's program that decide whether it is like another's. An outline is small, since all ranks'
    outlines exist at once.

    :param shapes: an id for each known shape. A new shape is added with the next id.
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


class PlanRun:
    """Run of a script.

    :param ranks: ``ranks[rank]`` is the network rank of the plan's ``rank``.
    :param itemsize: bytes per element.
    :param number: number of the collective. Messages of lower numbers are sent first.
    :param on_done: called with the number of a part when all of its steps are complete.
    :param lane: lane of its messages; see :meth:`Network.send`.
    """

    def __init__(
        self,
        network: Network,
        script: Script,
        ranks: Sequence[int],
        itemsize: int,
        number: int,
        on_done: Callable[[int], None],
        lane: int = 0,
    ) -> None:
        self._network, self._number, self._itemsize, self._lane = network, number, itemsize, lane
        self._parts = [_ProgramState(part, ranks[part.rank]) for part in script.parts]
        self._ranks, self._part_of = ranks, script.part_of
        self._paths: dict[tuple[int, int, int], Path] = {}
        self._on_done = on_done

    def begin(self, part: int) -> None:
        """Start the steps of script part ``part`` that wait for no other step."""
        progress = self._parts[part]
        for index, waits in enumerate(progress.part.waits):
            if not waits:
                self._start_step(part, index)
        if not progress.part.steps:
            self._network.engine.after(0.0, partial(self._on_done, part))

    def _start_step(self, number: int, index: int) -> None:
        """Start step ``index`` of part ``number``. All steps that it waits for must be complete."""
        progress = self._parts[number]
        step = progress.part.steps[index]
        if step.kind is not StepKind.SEND:
            progress.startable.add(index)
            if index in progress.arrived:
                self._receive(number, index)
            return
        to, peer_step = progress.part.mates[index]
        nbytes = (step.stop - step.start) * self._itemsize
        sent, arrived = partial(self._complete, number, index), partial(self._on_arrival, to, peer_step)
        path = self._path(number, step)
        self._network.send(progress.rank, step.rail, path, nbytes, (self._number, index), sent, arrived, self._lane)

    def _path(self, number: int, step: Step) -> Path:
        """Return the path of a step's messages, into the NIC of the rank that is run in place of the peer."""
        key = number, step.peer, step.rail
        if key not in self._paths:
            path = self._network.path(self._parts[number].rank, self._ranks[step.peer], step.rail)
            other = self._parts[self._part_of[step.peer]].rank
            if other != self._ranks[step.peer]:
                path = (*path[:-1], self._network.nic(self._network.topology.host_of(other).index, step.rail) + 1)
            self._paths[key] = path
        return self._paths[key]

    def _on_arrival(self, number: int, index: int) -> None:
        progress = self._parts[number]
        progress.arrived.add(index)
        if index in progress.startable:
            self._receive(number, index)

    def _receive(self, number: int, index: int) -> None:
        step = self._parts[number].part.steps[index]
        if step.kind is StepKind.COMBINE:
            seconds = self._network.cost.gamma * (step.stop - step.start) * self._itemsize
            self._network.engine.after(seconds, partial(self._complete, number, index))
        else:
            self._complete(number, index)

    def _complete(self, number: int, index: int) -> None:
        progress = self._parts[number]
        progress.left -= 1
        for follower in progress.part.followers[index]:
            progress.waits[follower] -= 1
            if not progress.waits[follower]:
                self._start_step(number, follower)
        if not progress.left:
            self._on_done(number)


class _ProgramState:
    """Progress of a part.

    ``startable``: receive steps that may begin. ``arrived``: receive steps whose messages have arrived.
    """

    def __init__(self, part: RankProgram, rank: int) -> None:
        self.part, self.rank = part, rank
        self.waits = list(part.waits)
        self.left = len(part.steps)
        self.startable: set[int] = set()
        self.arrived: set[int] = set()


@dataclass(frozen=True)
class CollectiveResult:
    """Result of a simulated collective.

    :param ends: seconds from the beginning at which each rank has finished.
    :param sent: bytes sent by all ranks.
    :param simulated: number of ranks that were run. Each other rank is equivalent to one of these.
    :param carried: bytes over each link of the simulated ranks, in the order of ``capacities``.
    :param capacities: rate of each link, bytes per second, as in :class:`~sparkdl_comm.sim.network.Network`.
    """

    ends: tuple[float, ...]
    sent: int
    simulated: int
    carried: tuple[float, ...]
    capacities: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Seconds until the last rank has finished."""
        return max(self.ends)


def simulate(
    plan: Plan,
    cost: Cost,
    itemsize: int = 4,
    *,
    latency: float = 0.0,
    queue: float = QUEUE,
    calls: int = 1,
    coalesce: bool = True,
) -> CollectiveResult:
    """Run a plan ``calls`` times. A rank begins a call when its previous call is complete.

    :param itemsize: bytes per element.
    :param latency: seconds from sending a byte to its arrival.
    :param queue: length of the queue before a link, in seconds of the link's rate.
    :param coalesce: run one rank for all equivalent ranks (see the module). False: run every rank.
    :raises PlanError: the steps of the plan do not match, or wait for each other.
    """
    topology = plan.collective.topology
    engine = Engine()
    network = Network(engine, topology, cost, latency, queue)
    marks = [0] * topology.world if coalesce and network.can_be_alike else range(topology.world)
    followed = make_script(plan, marks)
    ends: dict[int, float] = {}
    runs: list[PlanRun] = []

    def on_done(call: int, part: int) -> None:
        if call + 1 < calls:
            runs[call + 1].begin(part)
        else:
            ends[part] = engine.now

    runs += [
        PlanRun(network, followed, range(topology.world), itemsize, call, partial(on_done, call))
        for call in range(calls)
    ]
    for number in range(len(followed.parts)):
        engine.at(0.0, partial(runs[0].begin, number))
    engine.run(math.inf)
    if len(ends) < len(followed.parts):
        raise PlanError(f"{plan}: {len(followed.parts) - len(ends)} of {len(followed.parts)} ranks wait for each other")
    return CollectiveResult(
        ends=tuple(ends[part] for part in followed.part_of),
        sent=calls * _sent(followed, itemsize),
        simulated=len(followed.parts),
        carried=tuple(network.links.carried),
        capacities=tuple(network.capacities),
    )


def round_up_count(topology: Topology, count: int) -> int:
    """Return the next number of elements that divides equally among all ranks and rails.

    With it, the ranks of a ring, or of BML, are equivalent to the last byte.
    """
    grain = topology.world * topology.rails
    return -(-count // grain) * grain


def _sent(followed: Script, itemsize: int) -> int:
    """Return the bytes that all ranks send in one run."""
    members = Counter(followed.part_of)
    return sum(members[number] * part.elements_sent * itemsize for number, part in enumerate(followed.parts))
