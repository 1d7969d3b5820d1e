"""Simulated training step: gradients are all-reduced bucket by bucket while backward runs.

A rank computes forward, and then backward, layer by layer from the last one. The all-reduce of a bucket begins when its
gradients are complete. When all buckets are reduced, the rank updates its parameters. The strategies of
``strategies/collective.py`` and torch's DistributedDataParallel work this way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.select import make_collective
from sparkdl_comm.sim.collective import round_up_count
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import PlanRun
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.sim.script import Script, make_script
from sparkdl_comm.space.layer_buckets import group_into_buckets
from sparkdl_comm.topology import Topology

#: Bytes per element: parameters and gradients are float32.
ITEMSIZE = 4


@dataclass(frozen=True)
class Bucket:
    """Bucket of ``elements`` whose gradients are complete ``seconds`` after the beginning of backward."""

    elements: int
    seconds: float


@dataclass(frozen=True)
class ComputeTimings:
    """Compute times of one rank in a step.

    :param forward: seconds of forward.
    :param backward: seconds of backward.
    :param buckets: buckets in the order in which backward completes them.
    :param update: seconds of the update at the end.
    """

    forward: float
    backward: float
    buckets: tuple[Bucket, ...]
    update: float = 0.0

    @classmethod
    def of(
        cls, profile: Profile, scale: float, bucket_bytes: int, update: float = 0.0, first_bytes: int | None = None
    ) -> ComputeTimings:
        """Return the compute times of a network with float32 parameters.

        :param scale: factor of the profile's seconds.
        :param bucket_bytes: least bytes of a bucket. Buckets end where parameters end, and only the last may be
            smaller.
        :param update: seconds of the update.
        :param first_bytes: least bytes of the first bucket. None: ``bucket_bytes``.
        """

        def gradients() -> Iterator[tuple[float, float]]:
            seconds = 0.0
            for layer in reversed(profile.layers):
                seconds += layer.backward * scale
                for shape in reversed(list(layer.shapes.values())):
                    yield ITEMSIZE * math.prod(shape), seconds

        forward, backward = (
            math.fsum(getattr(layer, direction) for layer in profile.layers) * scale
            for direction in ("forward", "backward")
        )
        return cls(forward, backward, cut(gradients(), bucket_bytes, first_bytes), update)


def cut(
    gradients: Iterable[tuple[float, float]], bucket_bytes: int, first_bytes: int | None = None
) -> tuple[Bucket, ...]:
    """Group gradients into buckets.

    :param gradients: bytes of each gradient, and the seconds after the beginning of backward when it is complete, in this
        order.
    :param bucket_bytes: least bytes of a bucket. Only the last may be smaller.
    :param first_bytes: least bytes of the first bucket. None: ``bucket_bytes``.
    """
    items = list(gradients)
    sizes = [nbytes for nbytes, _ in items]
    return tuple(
        Bucket(round(sum(sizes[part.start : part.stop]) / ITEMSIZE), items[part[-1]][1])
        for part in group_into_buckets(sizes, bucket_bytes, first_bytes)
    )


def step_seconds(
    algorithm: str,
    topology: Topology,
    computing: ComputeTimings,
    cost: Cost,
    *,
    latency: float = 0.0,
    slowdowns: Sequence[float] = (),
    coalesce: bool = True,
) -> float:
    """Return the seconds until all ranks have finished a step with float32 gradients, if they begin at once.

    :param algorithm: one of :data:`~sparkdl_comm.collectives.algorithms.ALGORITHMS`.
    :param slowdowns: factor of each rank's compute times, except for its update. Default: 1.
    :param coalesce: run one rank for all equivalent ranks (see ``script.py``). False: run every rank.
    """
    every = range(topology.world)
    slow = tuple(slowdowns) or (1.0,) * topology.world
    engine = Engine()
    network = Network(engine, topology, cost, latency)
    ends = [(computing.forward + computing.backward) * factor for factor in slow]

    def reduced(part: int) -> None:
        ends.append(engine.now)

    marks: Sequence[Hashable] = slow if coalesce and network.can_be_alike else every
    [followed] = make_scripts(algorithm, ["all_reduce"], computing.buckets, topology, cost, marks)
    for number, bucket in enumerate(computing.buckets):
        parts = followed[bucket.elements]
        run = PlanRun(network, parts, every, ITEMSIZE, number, reduced)
        for part, member in enumerate(parts.parts):
            engine.at((computing.forward + bucket.seconds) * slow[member.rank], partial(run.begin, part))
    engine.run(math.inf)
    return max(ends) + computing.update


def make_scripts(
    algorithm: str,
    operations: Sequence[Operation],
    buckets: Sequence[Bucket],
    topology: Topology,
    cost: Cost,
    marks: Sequence[Hashable],
) -> list[dict[int, Script]]:
    """Return for each operation the scripts of buckets, by their elements. The same ranks are alike in all of them.

    Buckets are made slightly larger, so that all ranks have equal parts of them.
    """
    plans = {}
    for operation, elements in itertools.product(operations, {bucket.elements for bucket in buckets}):
        collective = make_collective(algorithm, operation, topology, round_up_count(topology, elements), ITEMSIZE, cost)
        plans[operation, elements] = make_plan(algorithm, collective)
    while True:
        scripts_by_key = {key: make_script(plan, marks) for key, plan in plans.items()}
        combined = list(zip(*(one.part_of for one in scripts_by_key.values()), strict=True))
        if all(len(one.parts) == len(set(combined)) for one in scripts_by_key.values()):
            return [
                {size: one for (of, size), one in scripts_by_key.items() if of == operation} for operation in operations
            ]
        marks = combined
