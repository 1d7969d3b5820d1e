"""Simulated stages of collectives in groups of ranks, with computing in between, as in a hierarchical exchange.

A rank enters the next stage when its part of the last one is complete, like in ``compress/hitopk.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost, make_collective, rank_algorithms
from sparkdl_comm.collectives.plan import Operation, Plan
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.errors import ConfError, PlanError
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import PlanRun, make_script
from sparkdl_comm.sim.step_run import ITEMSIZE
from sparkdl_comm.topology import Topology


@dataclass(frozen=True)
class Group:
    """Group of ranks that run a plan. ``ranks[rank]``: network rank of the plan's ``rank``. ``itemsize``: bytes per
    element.
    """

    plan: Plan
    ranks: Sequence[int]
    itemsize: int


@dataclass(frozen=True)
class Stage:
    """Stage of an exchange: disjoint ``groups``. Each rank first computes for ``computing`` seconds."""

    groups: Sequence[Group]
    computing: float = 0.0


def run_stages(network: Network, stages: Sequence[Stage]) -> float:
    """Return the seconds until all ranks of the network have finished.

    :raises PlanError: ranks wait for each other.
    """
    world = network.topology.world
    ends = dict.fromkeys(range(world), math.inf)
    entries: list[dict[int, partial[None]]] = []

    def enter(number: int, rank: int) -> None:
        if number == len(stages):
            ends[rank] = network.engine.now
        else:
            begin = entries[number].get(rank, partial(enter, number + 1, rank))
            network.engine.after(stages[number].computing, begin)

    for number, stage in enumerate(stages):
        entries.append({})
        for group in stage.groups:
            parts = make_script(group.plan, range(len(group.ranks)))
            ranks = [group.ranks[part.rank] for part in parts.parts]

            def done(part: int, number: int = number, ranks: Sequence[int] = ranks) -> None:
                enter(number + 1, ranks[part])

            run = PlanRun(network, parts, group.ranks, group.itemsize, number, done)
            entries[number] |= {rank: partial(run.begin, part) for part, rank in enumerate(ranks)}
    for rank in range(world):
        enter(0, rank)
    network.engine.run(math.inf)
    if math.inf in ends.values():
        raise PlanError(f"ranks {[rank for rank, end in ends.items() if end == math.inf]} wait for others forever")
    return max(ends.values())


def hierarchical_top_k(
    topology: Topology,
    count: int,
    density: float,
    cost: Cost,
    *,
    latency: float = 0.0,
    selecting: float = 0.0,
    adding: float = 0.0,
) -> float:
    """Return the seconds of a hierarchical top-k sum of ``count`` float32 elements, like in ``compress/hitopk.py``.

    :param selecting: seconds in which a rank selects from its part.
    :param adding: seconds in which a rank adds up what it received.
    :raises ConfError: hosts have several rails.
    """
    if topology.rails != 1:
        raise ConfError(f"{topology}: hierarchical top-k is for hosts with one NIC each, not {topology.rails}")
    hosts, slots = len(topology.hosts), topology.ranks_per_host
    message = SparseFormat.of_density(-(-count // slots), density).nbytes
    inside = [host.ranks for host in topology.hosts]
    between = [tuple(range(slot, topology.world, slots)) for slot in range(slots)]
    star = Topology.parse(f"star:{hosts}")
    chosen = rank_algorithms("all_gather", star, hosts * message, 1, cost)[0].algorithm if hosts > 1 else "ring"
    stages = [
        Stage(_groups("ring", "reduce_scatter", f"hosts:1x{slots}", inside, count, ITEMSIZE, cost)),
        Stage(_groups(chosen, "all_gather", f"star:{hosts}", between, hosts * message, 1, cost), selecting),
        Stage(_groups("ring", "all_gather", f"hosts:1x{slots}", inside, slots * hosts * message, 1, cost)),
        Stage((), adding),
    ]
    return run_stages(Network(Engine(), topology, cost, latency), stages)


def _groups(
    name: str, operation: Operation, text: str, ranks: Sequence[Sequence[int]], count: int, itemsize: int, cost: Cost
) -> list[Group]:
    plan = make_plan(name, make_collective(name, operation, Topology.parse(text), count, itemsize, cost))
    return [Group(plan, each, itemsize) for each in ranks]
