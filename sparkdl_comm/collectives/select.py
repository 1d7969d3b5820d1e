"""Predicted time of each algorithm for a size, and the ranking of the algorithms. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.collectives.algorithms import ALGORITHMS, Algorithm, make_plan
from sparkdl_comm.collectives.cost import Cost, critical_path
from sparkdl_comm.collectives.plan import Collective, Operation, StepKind
from sparkdl_comm.collectives.transfers import count_sent_elements, order_transfers
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

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
