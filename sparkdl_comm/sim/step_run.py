"""One step of training in virtual time: gradients are all-reduced bucket by bucket while backward goes on.

A rank computes forward, and then backward, layer by layer from the last one. Whenever a bucket's gradients are there, its
all-reduce begins; when all buckets are reduced, the rank updates its parameters. So do the strategies of ``strategies/
collective.py`` and torch's DistributedDataParallel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.select import collective_for
from sparkdl_comm.lab.profile import Profile
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import PlanRun
from sparkdl_comm.sim.script import script
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
    least = bucket_bytes if first_bytes is None else first_bytes
    buckets: list[Bucket] = []
    nbytes, seconds = 0.0, 0.0
    for more, seconds in made:
        nbytes += more
        if nbytes >= least:
            buckets.append(Bucket(round(nbytes / ITEMSIZE), seconds))
            nbytes, least = 0.0, bucket_bytes
    if nbytes:
        buckets.append(Bucket(round(nbytes / ITEMSIZE), seconds))
    return tuple(buckets)


def step_seconds(
    algorithm: str,
    topology: Topology,
    computing: Computing,
    cost: Cost,
    *,
    latency: float = 0.0,
    slowdowns: Sequence[float] = (),
) -> float:
    """Seconds until all ranks have done a step with float32 gradients, if they begin at once.

    :param algorithm: of :data:`~sparkdl_comm.collectives.algorithms.ALGORITHMS`.
    :param slowdowns: how many times as long each rank computes, but for its update; default: 1.
    """
    slow = tuple(slowdowns) or (1.0,) * topology.world
    engine = Engine()
    network = Network(engine, topology, cost, latency)
    ends = [(computing.forward + computing.backward) * factor for factor in slow]

    def reduced(rank: int) -> None:
        ends[rank] = max(ends[rank], engine.now)

    for number, bucket in enumerate(computing.buckets):
        plan = make_plan(algorithm, collective_for(algorithm, "all_reduce", topology, bucket.elements, ITEMSIZE, cost))
        every = range(topology.world)
        run = PlanRun(network, script(plan, every), every, ITEMSIZE, number, reduced)
        for rank, factor in enumerate(slow):
            engine.at((computing.forward + bucket.seconds) * factor, partial(run.begin, rank))
    engine.run(math.inf)
    return max(ends) + computing.update
