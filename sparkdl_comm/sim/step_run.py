"""One step of training in virtual time: gradients are all-reduced bucket by bucket while backward goes on.

A rank computes forward, and then backward, layer by layer from the last one. Whenever a bucket's gradients are there, its
all-reduce begins; when all buckets are reduced, the rank updates its parameters. So do the strategies of ``strategies/
collective.py`` and torch's DistributedDataParallel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.select import collective_for
from sparkdl_comm.lab.profile import Profile
from sparkdl_comm.sim.collective import even_count
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import PlanRun
from sparkdl_comm.sim.script import Script, script
from sparkdl_comm.space.layer_buckets import in_buckets
from sparkdl_comm.topology import Topology

#: Bytes of an element: parameters and gradients are float32.
ITEMSIZE = 4


@dataclass(frozen=True)
class Bucket:
    """``elements`` whose gradients are there ``seconds`` after the beginning of backward."""

    elements: int
    seconds: float


@dataclass(frozen=True)
class Computing:
    """What one rank does alone in a step: ``forward`` and ``backward`` seconds, ``buckets`` that backward completes one after
    another, and ``update`` seconds at the end."""

    forward: float
    backward: float
    buckets: tuple[Bucket, ...]
    update: float = 0.0

    @classmethod
    def of(
        cls, profile: Profile, scale: float, bucket_bytes: int, update: float = 0.0, first_bytes: int | None = None
    ) -> Computing:
        """That of a network with float32 parameters.

        :param scale: multiplies the profile's seconds.
        :param bucket_bytes: buckets end where parameters do, and have so many bytes at least, but the last one.
        :param update: seconds.
        :param first_bytes: those of the first bucket, if it has others.
        """

        def made() -> Iterator[tuple[float, float]]:
            seconds = 0.0
            for layer in reversed(profile.layers):
                seconds += layer.backward * scale
                for shape in reversed(list(layer.shapes.values())):
                    yield ITEMSIZE * math.prod(shape), seconds

        forward, backward = (
            math.fsum(getattr(layer, way) for layer in profile.layers) * scale for way in ("forward", "backward")
        )
        return cls(forward, backward, cut(made(), bucket_bytes, first_bytes), update)


def cut(made: Iterable[tuple[float, float]], bucket_bytes: int, first_bytes: int | None = None) -> tuple[Bucket, ...]:
    """Cuts gradients into buckets.

    :param made: bytes of gradients, and how many seconds after the beginning of backward they are there, in this order.
    :param bucket_bytes: that buckets have at least, but the last one.
    :param first_bytes: that the first bucket has at least, if it is another one.
    """
    items = list(made)
    sizes = [nbytes for nbytes, _ in items]
    return tuple(
        Bucket(round(sum(sizes[part.start : part.stop]) / ITEMSIZE), items[part[-1]][1])
        for part in in_buckets(sizes, bucket_bytes, first_bytes)
    )


def step_seconds(
    algorithm: str,
    topology: Topology,
    computing: Computing,
    cost: Cost,
    *,
    latency: float = 0.0,
    slowdowns: Sequence[float] = (),
    coalesce: bool = True,
) -> float:
    """Seconds until all ranks have done a step with float32 gradients, if they begin at once.

    :param algorithm: of :data:`~sparkdl_comm.collectives.algorithms.ALGORITHMS`.
    :param slowdowns: how many times as long each rank computes, but for its update; default: 1.
    :param coalesce: runs one rank for all that are alike (see ``script.py``); False: every rank.
    """
    every = range(topology.world)
    slow = tuple(slowdowns) or (1.0,) * topology.world
    engine = Engine()
    network = Network(engine, topology, cost, latency)
    ends = [(computing.forward + computing.backward) * factor for factor in slow]

    def reduced(part: int) -> None:
        ends.append(engine.now)

    marks: Sequence[Hashable] = slow if coalesce and network.can_be_alike else every
    followed = _scripts(algorithm, computing.buckets, topology, cost, marks)
    for number, bucket in enumerate(computing.buckets):
        parts = followed[bucket.elements]
        run = PlanRun(network, parts, every, ITEMSIZE, number, reduced)
        for part, member in enumerate(parts.parts):
            engine.at((computing.forward + bucket.seconds) * slow[member.rank], partial(run.begin, part))
    engine.run(math.inf)
    return max(ends) + computing.update


def _scripts(
    algorithm: str, buckets: Sequence[Bucket], topology: Topology, cost: Cost, marks: Sequence[Hashable]
) -> dict[int, Script]:
    """Those of buckets with so many elements, in which the same ranks are alike. Buckets are made a little larger, so that all
    ranks have equal parts of them."""
    plans = {}
    for elements in {bucket.elements for bucket in buckets}:
        collective = collective_for(algorithm, "all_reduce", topology, even_count(topology, elements), ITEMSIZE, cost)
        plans[elements] = make_plan(algorithm, collective)
    while True:
        found = {elements: script(plan, marks) for elements, plan in plans.items()}
        together = list(zip(*(one.part_of for one in found.values()), strict=True))
        if all(len(one.parts) == len(set(together)) for one in found.values()):
            return found
        marks = together
