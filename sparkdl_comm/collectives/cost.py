"""Predicted time of a plan, by the alpha-beta-gamma model, and the ranking of the algorithms. Pure.

A message of n bytes occupies the sender's NIC and the receiver's NIC for alpha + beta n seconds. Combining it takes the
receiver another gamma n seconds, during which the next message can arrive. A NIC sends and receives at the same time,
but only one message in each direction. The ranks of a host share its NICs: the message that can start first goes first.
Messages between ranks of one host use no NIC. There, a rank sends one message at a time and receives one at a time. The
model assumes that switches and trunks are never the bottleneck.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_comm.collectives.algorithms import ALGORITHMS, Algorithm, make_plan
from sparkdl_comm.collectives.plan import Collective, Operation, StepKind
from sparkdl_comm.collectives.transfers import Transfer, count_sent_elements, order_transfers
from sparkdl_comm.errors import ConfError, PlanError
from sparkdl_comm.topology import Topology

#: Default costs, used until measured: seconds per message, per byte combined, and per byte between processes of one host.
#: They have the order of magnitude of TCP between Python processes.
ALPHA, GAMMA, LOCAL_BETA = 5e-5, 2e-10, 1e-9


@dataclass(frozen=True)
class Cost:
    """Costs of messages and of combining.

    ``alpha``: seconds per message. ``betas``: seconds per byte, for each rail. ``gamma``: seconds per byte combined.
    ``local``: seconds per byte between ranks of one host.
    """

    betas: tuple[float, ...]
    alpha: float = ALPHA
    gamma: float = GAMMA
    local: float = LOCAL_BETA

    @classmethod
    def of(cls, topology: Topology, alpha: float = ALPHA, gamma: float = GAMMA) -> Cost:
        """Return the costs that follow from the topology's rates.

        :raises ConfError: the topology has no rates.
        """
        if not topology.rates:
            raise ConfError(f"{topology} has no rates: give one, such as {topology},200mbit")
        return cls(tuple(8 / rate for rate in topology.rates), alpha, gamma)

    def best_block(self, nbytes: int, depth: float) -> int:
        """Return the block size in bytes that takes the least time: sqrt(n alpha / (depth beta)), n being ``nbytes``.

        At this size b, filling the pipeline (depth b beta) takes as long as the overhead of n/b messages (alpha each).
        beta is that of the slowest rail. ``depth``: see ``Algorithm``; 0 gives one block.
        """
        if not depth:
            return max(1, nbytes)
        return max(1, round(math.sqrt(nbytes * self.alpha / (depth * max(self.betas)))))


def critical_path(plan_transfers: Sequence[Transfer], topology: Topology, itemsize: int, cost: Cost) -> float:
    """Return the seconds until the last transfer of a plan completes, if ranks send over each NIC in program order.

    :param plan_transfers: :func:`~sparkdl_comm.collectives.transfers.order_transfers` of the plan.
    :param itemsize: bytes per element.
    :raises PlanError: in that order, ranks would wait for each other.
    """
    links = [_link(transfer, topology) for transfer in plan_transfers]
    ports = [_ports(transfer, link, topology) for transfer, link in zip(plan_transfers, links, strict=True)]
    followers: list[list[int]] = [[] for _ in plan_transfers]
    pending = [len(transfer.after) for transfer in plan_transfers]
    for number, transfer in enumerate(plan_transfers):
        for other in transfer.after:
            followers[other].append(number)
    next_of_sender: dict[int, int] = {}  # transfer -> the same rank's next transfer over the same NIC
    last_of_sender: dict[tuple[int, int], int] = {}
    for number in sorted(range(len(plan_transfers)), key=lambda number: plan_transfers[number].step_index):
        sender = plan_transfers[number].source, links[number]
        if sender in last_of_sender:
            next_of_sender[last_of_sender[sender]] = number
            pending[number] += 1
        last_of_sender[sender] = number

    earliest_start = [0.0] * len(plan_transfers)
    busy: dict[Port, float] = {}  # time at which the port becomes free
    queue = [(0.0, number) for number, count in enumerate(pending) if not count]
    last, count = 0.0, 0
    while queue:
        begin, number = heapq.heappop(queue)
        transfer, link = plan_transfers[number], links[number]
        free_at = max(busy.get(port, 0.0) for port in ports[number])
        if free_at > begin:
            heapq.heappush(queue, (free_at, number))
            continue
        nbytes = transfer.elements * itemsize
        arrived = begin + cost.alpha + nbytes * (cost.local if link == _LOCAL else cost.betas[link])
        complete = arrived + (nbytes * cost.gamma if transfer.receive.kind is StepKind.COMBINE else 0.0)
        busy |= dict.fromkeys(ports[number], arrived)
        last, count = max(last, complete), count + 1
        released = [(follower, complete) for follower in followers[number]]
        released += [(next_of_sender[number], arrived)] if number in next_of_sender else []
        for follower, when in released:
            earliest_start[follower] = max(earliest_start[follower], when)
            pending[follower] -= 1
            if not pending[follower]:
                heapq.heappush(queue, (earliest_start[follower], follower))
    if count < len(plan_transfers):
        raise PlanError(
            f"{len(plan_transfers) - count} of {len(plan_transfers)} transfers wait for each other if ranks send in"
            " program order"
        )
    return last


_LOCAL = -1

#: Direction of a NIC, (host, rail, is_sender), or of a rank's local traffic, (rank, _LOCAL, is_sender).
Port = tuple[int, int, bool]


def _link(transfer: Transfer, topology: Topology) -> int:
    local = topology.host_of(transfer.source) is topology.host_of(transfer.target)
    return _LOCAL if local else transfer.rail


def _ports(transfer: Transfer, link: int, topology: Topology) -> tuple[Port, Port]:
    """Return the sender's port and the receiver's port, which the transfer occupies."""
    ends = transfer.source, transfer.target
    source, target = ends if link == _LOCAL else (topology.host_of(rank).index for rank in ends)
    return (source, link, True), (target, link, False)


#: Limit on the steps of all ranks together. Above it, a prediction counts only the busiest link, since sorting millions
#: of transfers takes minutes.
MAX_STEPS = 200_000


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of an algorithm.

    ``seconds``: duration of the collective. ``rail_bytes``: for each rail, bytes that the busiest host's NIC sends.
    ``block``: bytes per block; 0 if the algorithm uses no blocks. ``is_lower_bound``: True if ``seconds`` counts only the
    busiest NIC.
    """

    algorithm: str
    seconds: float
    rail_bytes: tuple[int, ...]
    block: int
    is_lower_bound: bool = False


def make_collective(
    name: str, operation: Operation, topology: Topology, count: int, itemsize: int, cost: Cost, block: int = 0
) -> Collective:
    """Return the collective with blocks of ``block`` bytes, or of the model's best size if ``block`` is 0."""
    depth = ALGORITHMS[name].depth(topology)
    nbytes = block or cost.best_block(count * itemsize, depth)
    return Collective(operation, topology, count, block=max(1, nbytes // itemsize))


def predict(
    name: str, operation: Operation, topology: Topology, count: int, itemsize: int, cost: Cost, block: int = 0
) -> Prediction:
    """Return the prediction for an algorithm that runs on the topology.

    :param count: elements of ``itemsize`` bytes.
    :param block: as in :func:`make_collective`.
    """
    collective = make_collective(name, operation, topology, count, itemsize, cost, block)
    plan = make_plan(name, collective)
    block_bytes = collective.block * itemsize if ALGORITHMS[name].depth(topology) else 0
    sample_host = topology.hosts[len(topology.hosts) // 2]
    steps = [step for rank in sample_host.ranks for step in plan.program(rank).steps]
    if len(steps) * len(topology.hosts) > MAX_STEPS:
        # One host stands for all: only hosts at the ends of a chain differ.
        remote_sends = [step for step in steps if step.kind is StepKind.SEND and step.peer not in sample_host.ranks]
        by_rail = [[step for step in remote_sends if step.rail == rail] for rail in range(topology.rails)]
        rail_bytes = tuple(sum(step.stop - step.start for step in sent) * itemsize for sent in by_rail)
        links = zip(by_rail, rail_bytes, cost.betas, strict=True)
        busiest = [len(sent) * cost.alpha + nbytes * beta for sent, nbytes, beta in links]
        local_sends = [step for step in steps if step.kind is StepKind.SEND and step.peer in sample_host.ranks]
        busiest += [
            sum(cost.alpha + (s.stop - s.start) * itemsize * cost.local for s in local_sends) / topology.ranks_per_host
        ]
        return Prediction(name, max(busiest), rail_bytes, block_bytes, is_lower_bound=True)
    plan_transfers = order_transfers(plan)
    sent = count_sent_elements(
        t for t in plan_transfers if topology.host_of(t.source) is not topology.host_of(t.target)
    )
    rail_bytes = tuple(
        max(sum(sent.get((rank, rail), 0) for rank in host.ranks) for host in topology.hosts) * itemsize
        for rail in range(topology.rails)
    )
    return Prediction(name, critical_path(plan_transfers, topology, itemsize, cost), rail_bytes, block_bytes)


def list_eligible(operation: Operation, topology: Topology) -> list[Algorithm]:
    """Return the algorithms that support the operation on this topology."""
    return [a for a in ALGORITHMS.values() if operation in a.operations and not a.why_ineligible(topology)]


def rank_algorithms(
    operation: Operation, topology: Topology, count: int, itemsize: int, cost: Cost
) -> list[Prediction]:
    """Return predictions for all algorithms that support the operation, cheapest first; ties in the order of
    ALGORITHMS.

    :raises ConfError: no algorithm supports it on this topology.
    """
    found = [predict(a.name, operation, topology, count, itemsize, cost) for a in list_eligible(operation, topology)]
    if not found:
        raise ConfError(f"no algorithm supports {operation} on {topology}")
    return sorted(found, key=lambda prediction: prediction.seconds)
