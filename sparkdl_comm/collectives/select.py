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
    """``seconds`` that an algorithm takes, and ``rail_bytes``: what its busiest rank sends over each rail.

    ``block``: bytes per block, 0 if it does not cut into blocks. ``bound``: seconds are the busiest link's alone.
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
    world = topology.world
    middle = plan.program(world // 2).steps
    if len(middle) * world > MAX_STEPS:
        # All ranks but those at the ends of a chain send alike.
        steps_of = [
            [step for step in middle if step.kind is Kind.SEND and step.rail == r] for r in range(topology.rails)
        ]
        rail_bytes = tuple(sum(step.stop - step.start for step in steps) * itemsize for steps in steps_of)
        links = zip(steps_of, rail_bytes, cost.betas, strict=True)
        busiest = max(len(steps) * cost.alpha + nbytes * beta for steps, nbytes, beta in links)
        return Prediction(name, busiest, rail_bytes, cut, bound=True)
    done = transfers(plan)
    sent = sent_elements(t for t in done if topology.host_of(t.source) is not topology.host_of(t.target))
    rail_bytes = tuple(
        max(sent.get((rank, rail), 0) for rank in range(world)) * itemsize for rail in range(topology.rails)
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
