"""What each algorithm is predicted to take for a size, and the cheapest of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.collectives.algorithms import ALGORITHMS, Algorithm, make_plan
from sparkdl_comm.collectives.cost import Cost, critical_path
from sparkdl_comm.collectives.plan import Collective, Kind, Operation
from sparkdl_comm.collectives.transfers import sent_elements, transfers
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

#: With more steps than this, all ranks' together, a prediction is the busiest link's time alone: sorting millions of
#: transfers takes minutes.
MAX_STEPS = 200_000


@dataclass(frozen=True)
class Prediction:
    """``seconds`` that an algorithm takes, and ``rail_bytes``: what the busiest host's NIC of each rail sends.

    ``block``: bytes per block, 0 if it does not cut into blocks. ``bound``: seconds are the busiest NIC's alone.
    """

    algorithm: str
    seconds: float
    rail_bytes: tuple[int, ...]
    block: int
    bound: bool = False


def collective_for(
    name: str, operation: Operation, topology: Topology, count: int, itemsize: int, cost: Cost, block: int = 0
) -> Collective:
    """The collective, in blocks of ``block`` bytes, or (0) of the size that the model says is best."""
    depth = ALGORITHMS[name].depth(topology)
    nbytes = block or cost.best_block(count * itemsize, depth)
    return Collective(operation, topology, count, block=max(1, nbytes // itemsize))


def predict(
    name: str, operation: Operation, topology: Topology, count: int, itemsize: int, cost: Cost, block: int = 0
) -> Prediction:
    """Of one algorithm that fits. ``count`` elements of ``itemsize`` bytes; ``block`` as in :func:`collective_for`."""
    collective = collective_for(name, operation, topology, count, itemsize, cost, block)
    plan = make_plan(name, collective)
    cut = collective.block * itemsize if ALGORITHMS[name].depth(topology) else 0
    middle = topology.hosts[len(topology.hosts) // 2]
    steps = [step for rank in middle.ranks for step in plan.program(rank).steps]
    if len(steps) * len(topology.hosts) > MAX_STEPS:
        # All hosts but those at the ends of a chain send alike.
        away = [step for step in steps if step.kind is Kind.SEND and step.peer not in middle.ranks]
        by_rail = [[step for step in away if step.rail == rail] for rail in range(topology.rails)]
        rail_bytes = tuple(sum(step.stop - step.start for step in sent) * itemsize for sent in by_rail)
        links = zip(by_rail, rail_bytes, cost.betas, strict=True)
        busiest = [len(sent) * cost.alpha + nbytes * beta for sent, nbytes, beta in links]
        inside = [step for step in steps if step.kind is Kind.SEND and step.peer in middle.ranks]
        busiest += [sum(cost.alpha + (s.stop - s.start) * itemsize * cost.local for s in inside) / topology.slots]
        return Prediction(name, max(busiest), rail_bytes, cut, bound=True)
    done = transfers(plan)
    sent = sent_elements(t for t in done if topology.host_of(t.source) is not topology.host_of(t.target))
    rail_bytes = tuple(
        max(sum(sent.get((rank, rail), 0) for rank in host.ranks) for host in topology.hosts) * itemsize
        for rail in range(topology.rails)
    )
    return Prediction(name, critical_path(done, topology, itemsize, cost), rail_bytes, cut)


def fitting(operation: Operation, topology: Topology) -> list[Algorithm]:
    """The algorithms that do the operation on this topology."""
    return [a for a in ALGORITHMS.values() if operation in a.operations and not a.unfit(topology)]


def ranking(operation: Operation, topology: Topology, count: int, itemsize: int, cost: Cost) -> list[Prediction]:
    """Of all algorithms that fit, the cheapest first; of equal ones, the first of ALGORITHMS."""
    found = [predict(a.name, operation, topology, count, itemsize, cost) for a in fitting(operation, topology)]
    if not found:
        raise ConfError(f"no algorithm does {operation} on {topology}")
    return sorted(found, key=lambda prediction: prediction.seconds)
