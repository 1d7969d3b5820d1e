"""Transfers of a plan: a valid order of them, and a run of the plan in memory.

A send and its matching receive are one transfer. It waits for the dependencies of both steps, and for the previous
transfer on the same connection. A plan is free of deadlocks, even if no network buffered a byte, exactly if these waits
have no cycle. :func:`transfers` sorts them, or raises if there is a cycle.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sparkdl_comm.collectives.plan import Kind, Plan, Step, dependencies
from sparkdl_comm.errors import PlanError
from sparkdl_comm.topology import Topology


class Transfer(NamedTuple):
    """Send and its matching receive.

    ``send``: step number ``turn`` of rank ``source``. ``receive``: step of rank ``target``. ``after``: indices of the
    transfers earlier in the list that must be complete first.
    """

    source: int
    target: int
    send: Step
    receive: Step
    turn: int
    after: tuple[int, ...]

    @property
    def rail(self) -> int:
        return self.send.rail

    @property
    def elements(self) -> int:
        return self.send.stop - self.send.start


def transfers(plan: Plan) -> list[Transfer]:
    """Return all transfers of the plan, each one after the transfers that it waits for.

    :raises PlanError: a message is not received, not sent, or differs in length; a range is outside of the memory; a
        rail does not reach a peer; the plan deadlocks.
    """
    world = plan.collective.world
    programs = [plan.program(rank) for rank in range(world)]
    for rank, program in enumerate(programs):
        _check_ranges(plan, rank, program.steps, plan.collective.count + program.scratch)
    meeting, pairs, waits = _matched(plan, [program.steps for program in programs])
    for rank, program in enumerate(programs):
        for index, before in enumerate(dependencies(program)):
            waits[meeting[rank, index]].update(meeting[rank, other] for other in before)
    return _sorted(plan, pairs, waits)


def run(plan: Plan, memory: Sequence[Any], combine: Callable[[Any, Any], Any]) -> None:
    """Run all steps of the plan on ``memory[rank]``, a numpy array of the rank's vector and scratch memory.

    ``combine(mine, theirs)`` returns the new content of a range.
    """
    for transfer in transfers(plan):
        sent = memory[transfer.source][transfer.send.start : transfer.send.stop]
        target = memory[transfer.target][transfer.receive.start : transfer.receive.stop]
        target[:] = combine(target, sent) if transfer.receive.kind is Kind.COMBINE else sent


def sent_elements(done: Iterable[Transfer]) -> dict[tuple[int, int], int]:
    """Return (rank, rail) -> number of elements that the rank sends over the rail."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for transfer in done:
        found[transfer.source, transfer.rail] += transfer.elements
    return dict(found)


def _check_ranges(plan: Plan, rank: int, steps: Sequence[Step], size: int) -> None:
    topology = plan.collective.topology
    for step in steps:
        if not 0 <= step.start < step.stop <= size:
            raise PlanError(f"{plan}: rank {rank} has {size} elements, but one step is {step}")
        if not _reaches(topology, rank, step.peer, step.rail):
            raise PlanError(f"{plan}: rank {rank} does not reach rank {step.peer} over rail {step.rail}")


def _reaches(topology: Topology, one: int, other: int, rail: int) -> bool:
    if one == other or not 0 <= other < topology.world or not 0 <= rail < topology.rails:
        return False
    here, there = topology.host_of(one).index, topology.host_of(other).index
    return here == there or topology.segment_of(here, rail) == topology.segment_of(there, rail)


_Pair = tuple[int, int, Step, Step, int]


def _matched(
    plan: Plan, programs: Sequence[Sequence[Step]]
) -> tuple[dict[tuple[int, int], int], list[_Pair], list[set[int]]]:
    """Match sends and receives.

    Return (rank, index of its step) -> number of its transfer; the transfers; and for each transfer, the previous one
    on its connection.
    """
    sends, receives = defaultdict(list), defaultdict(list)
    for rank, steps in enumerate(programs):
        for index, step in enumerate(steps):
            if step.kind is Kind.SEND:
                sends[rank, step.peer, step.rail].append(index)
            else:
                receives[step.peer, rank, step.rail].append(index)
    meeting: dict[tuple[int, int], int] = {}
    pairs: list[_Pair] = []
    waits: list[set[int]] = []
    for channel in sends.keys() | receives.keys():
        source, target, rail = channel
        if len(sends[channel]) != len(receives[channel]):
            said = f"{len(sends[channel])} messages sent, {len(receives[channel])} received"
            raise PlanError(f"{plan}: rank {source} to rank {target} over rail {rail}: {said}")
        for number, (out, into) in enumerate(zip(sends[channel], receives[channel], strict=True)):
            send, receive = programs[source][out], programs[target][into]
            if send.stop - send.start != receive.stop - receive.start:
                raise PlanError(f"{plan}: rank {source} to rank {target}: message {number} is {send}, but {receive}")
            meeting[source, out] = meeting[target, into] = len(pairs)
            waits.append({len(pairs) - 1} if number else set())
            pairs.append((source, target, send, receive, out))
    return meeting, pairs, waits


def _sorted(plan: Plan, pairs: Sequence[_Pair], waits: Sequence[set[int]]) -> list[Transfer]:
    followers: list[list[int]] = [[] for _ in pairs]
    for number, before in enumerate(waits):
        for other in before:
            followers[other].append(number)
    left = [len(before) for before in waits]
    ready = deque(number for number, count in enumerate(left) if not count)
    place: dict[int, int] = {}
    done: list[Transfer] = []
    while ready:
        number = ready.popleft()
        place[number] = len(done)
        done.append(Transfer(*pairs[number], tuple(place[other] for other in waits[number])))
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    if len(done) < len(pairs):
        stuck = next(pair for number, pair in enumerate(pairs) if number not in place)
        raise PlanError(
            f"{plan}: deadlock; one of {len(pairs) - len(done)} transfers that wait for each other: {stuck}"
        )
    return done
