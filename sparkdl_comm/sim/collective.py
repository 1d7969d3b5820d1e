"""How long collectives take in virtual time."""

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
from sparkdl_comm.sim.script import Script, script
from sparkdl_comm.topology import Topology


@dataclass(frozen=True)
class Simulated:
    """``ends``: when each rank was done, seconds from the beginning. ``sent``: bytes, of all ranks. ``simulated``: how many
    ranks were run; the others are like one of these. ``carried``: bytes that passed each link of these, in the order of
    :class:`~sparkdl_comm.sim.network.Network`'s ``capacities``, bytes per second."""

    ends: tuple[float, ...]
    sent: int
    simulated: int
    carried: tuple[float, ...]
    capacities: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Until the last rank is done."""
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
) -> Simulated:
    """Runs a plan ``calls`` times; a rank begins a call when the last one is complete there.

    :param itemsize: bytes per element.
    :param latency: seconds from the sending of a byte to its arrival.
    :param queue: seconds of a link's rate that are queued before it.
    :param starts: when each rank begins, seconds; default: all at 0.
    :param coalesce: runs one rank for all that are alike (see ``script.py``); False: every rank.
    :raises PlanError: a plan whose steps do not meet, or wait for each other.
    """
    topology = plan.collective.topology
    begins = tuple(starts) or (0.0,) * topology.world
    engine = Engine()
    network = Network(engine, topology, cost, latency, queue)
    marks: Sequence[float] = begins if coalesce and network.can_be_alike else range(topology.world)
    followed = script(plan, marks)
    ends: dict[int, float] = {}
    runs: list[PlanRun] = []

    def done(call: int, part: int) -> None:
        if call + 1 < calls:
            runs[call + 1].begin(part)
        else:
            ends[part] = engine.now

    runs += [
        PlanRun(network, followed, range(topology.world), itemsize, call, partial(done, call)) for call in range(calls)
    ]
    for number, part in enumerate(followed.parts):
        engine.at(begins[part.rank], partial(runs[0].begin, number))
    engine.run(math.inf)
    if len(ends) < len(followed.parts):
        raise PlanError(f"{plan}: {len(followed.parts) - len(ends)} of {len(followed.parts)} ranks wait for each other")
    return Simulated(
        ends=tuple(ends[part] for part in followed.part_of),
        sent=calls * _sent(followed, itemsize),
        simulated=len(followed.parts),
        carried=tuple(network.links.carried),
        capacities=tuple(network.capacities),
    )


def even_count(topology: Topology, count: int) -> int:
    """The next number of elements that all ranks and rails can have equal parts of: with it, the ranks of a ring, or of BML,
    are alike to the last byte."""
    grain = topology.world * topology.rails
    return -(-count // grain) * grain


def _sent(followed: Script, itemsize: int) -> int:
    """Bytes that all ranks send in one run."""
    members = Counter(followed.part_of)
    return sum(members[number] * part.elements_sent * itemsize for number, part in enumerate(followed.parts))
