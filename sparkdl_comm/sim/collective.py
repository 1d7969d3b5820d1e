"""Simulated time of collectives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Plan
from sparkdl_comm.errors import PlanError
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import QUEUE, Network
from sparkdl_comm.sim.plan_run import PlanRun
from sparkdl_comm.sim.script import Script, make_script
from sparkdl_comm.topology import Topology


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
    starts: Sequence[float] = (),
    coalesce: bool = True,
) -> CollectiveResult:
    """Run a plan ``calls`` times. A rank begins a call when its previous call is complete.

    :param itemsize: bytes per element.
    :param latency: seconds from sending a byte to its arrival.
    :param queue: length of the queue before a link, in seconds of the link's rate.
    :param starts: seconds at which each rank begins. Default: all at 0.
    :param coalesce: run one rank for all equivalent ranks (see ``script.py``). False: run every rank.
    :raises PlanError: the steps of the plan do not match, or wait for each other.
    """
    topology = plan.collective.topology
    begins = tuple(starts) or (0.0,) * topology.world
    engine = Engine()
    network = Network(engine, topology, cost, latency, queue)
    marks: Sequence[float] = begins if coalesce and network.can_be_alike else range(topology.world)
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
    for number, part in enumerate(followed.parts):
        engine.at(begins[part.rank], partial(runs[0].begin, number))
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
