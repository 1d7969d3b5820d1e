"""Transfers of a plan: a valid order of them, and a run of the plan in memory.

A send and its matching receive are one transfer. It waits for the dependencies of both steps, and for the previous
transfer on the same connection. If these waits have no cycle, the plan cannot deadlock, not even on a network that
buffers nothing. :func:`order_transfers` sorts the transfers, or raises if there is a cycle.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkdl_comm.collectives.plan import Plan, Step, StepKind, find_dependencies
from sparkdl_comm.errors import PlanError
from sparkdl_comm.topology import Topology


class Transfer(NamedTuple):
    """Send of one rank, and the matching receive of another rank.

    - ``source``: rank that sends. ``send``: its step. ``step_index``: index of this step in the rank's program.
    - ``target``: rank that receives. ``receive``: its step.
    - ``after``: transfers that must be complete first, as indices into the list of :func:`order_transfers`.
    """

    source: int
    target: int
    send: Step
    receive: Step
    step_index: int
    after: tuple[int, ...]

    @property
    def rail(self) -> int:
        return self.send.rail

    @property
    def elements(self) -> int:
        return self.send.stop - self.send.start


def order_transfers(plan: Plan) -> list[Transfer]:
    """Return all transfers of the plan, each one after the transfers that it waits for.

    :raises PlanError: a message is not received, not sent, or differs in length; a range is outside of the memory; a
        rail does not reach a peer; the plan deadlocks.
    """
    world = plan.collective.world
    programs = [plan.program(rank) for rank in range(world)]
    for rank, program in enumerate(programs):
        _check_ranges(plan, rank, program.steps, plan.collective.count + program.scratch)
    transfer_numbers, pairs, waits = _match_steps(plan, [program.steps for program in programs])
    for rank, program in enumerate(programs):
        for index, predecessors in enumerate(find_dependencies(program)):
            waits[transfer_numbers[rank, index]].update(transfer_numbers[rank, other] for other in predecessors)
    return _sort(plan, pairs, waits)


def count_sent_elements(plan_transfers: Iterable[Transfer]) -> dict[tuple[int, int], int]:
    """Return (rank, rail) -> number of elements that the rank sends over the rail."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for transfer in plan_transfers:
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


def _match_steps(
    plan: Plan, programs: Sequence[Sequence[Step]]
) -> tuple[dict[tuple[int, int], int], list[_Pair], list[set[int]]]:
    """Match sends and receives.

    Return (rank, index of its step) -> number of its transfer; the transfers; and for each transfer, the previous one
    on its connection.
    """
    sends, receives = defaultdict(list), defaultdict(list)
    for rank, steps in enumerate(programs):
        for index, step in enumerate(steps):
            if step.kind is StepKind.SEND:
                sends[rank, step.peer, step.rail].append(index)
            else:
                receives[step.peer, rank, step.rail].append(index)
    transfer_numbers: dict[tuple[int, int], int] = {}
    pairs: list[_Pair] = []
    waits: list[set[int]] = []
    for channel in sends.keys() | receives.keys():
        source, target, rail = channel
        if len(sends[channel]) != len(receives[channel]):
            counts = f"{len(sends[channel])} messages sent, {len(receives[channel])} received"
            raise PlanError(f"{plan}: rank {source} to rank {target} over rail {rail}: {counts}")
        for number, (send_index, receive_index) in enumerate(zip(sends[channel], receives[channel], strict=True)):
            send, receive = programs[source][send_index], programs[target][receive_index]
            if send.stop - send.start != receive.stop - receive.start:
                raise PlanError(f"{plan}: rank {source} to rank {target}: message {number} is {send}, but {receive}")
            transfer_numbers[source, send_index] = transfer_numbers[target, receive_index] = len(pairs)
            waits.append({len(pairs) - 1} if number else set())
            pairs.append((source, target, send, receive, send_index))
    return transfer_numbers, pairs, waits


def _sort(plan: Plan, pairs: Sequence[_Pair], waits: Sequence[set[int]]) -> list[Transfer]:
    followers: list[list[int]] = [[] for _ in pairs]
    for number, predecessors in enumerate(waits):
        for other in predecessors:
            followers[other].append(number)
    pending = [len(predecessors) for predecessors in waits]
    ready = deque(number for number, count in enumerate(pending) if not count)
    positions: dict[int, int] = {}
    sorted_transfers: list[Transfer] = []
    while ready:
        number = ready.popleft()
        positions[number] = len(sorted_transfers)
        sorted_transfers.append(Transfer(*pairs[number], tuple(positions[other] for other in waits[number])))
        for follower in followers[number]:
            pending[follower] -= 1
            if not pending[follower]:
                ready.append(follower)
    if len(sorted_transfers) < len(pairs):
        stuck = next(pair for number, pair in enumerate(pairs) if number not in positions)
        raise PlanError(
            f"{plan}: deadlock; one of {len(pairs) - len(sorted_transfers)} transfers that wait for each other: {stuck}"
        )
    return sorted_transfers
