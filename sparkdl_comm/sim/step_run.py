"""Simulated training steps whose gradients travel by collectives.

:func:`step_seconds`: a rank computes forward, and then backward, layer by layer from the last one. The all-reduce of a bucket
begins when its gradients are complete. When all buckets are reduced, the rank updates its parameters. The strategies of
``strategies/collective.py`` and torch's DistributedDataParallel work this way.

:func:`decoupled_seconds`: reduce-scatter and all-gather are separate, as in ``strategies/overlapped.py``. Buckets of
gradients are reduce-scattered while backward runs. When all are reduced, a rank updates its own part of the parameters, and
begins to gather them, bucket by bucket in the order of forward. The next forward pass waits for each bucket before using it.
The parameters of the last layers are gathered while backward runs, over separate connections, as soon as all of their
gradients are reduced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost, make_collective
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.sim.engine import Action, Engine
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import PlanRun, Script, make_script, round_up_count
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.space.parameter_space import count_early_buckets, group_into_buckets
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
        :param bucket_bytes: minimum bytes of a bucket. Buckets end where parameters end, and only the last may be
            smaller.
        :param update: seconds of the update.
        :param first_bytes: minimum bytes of the first bucket. None: ``bucket_bytes``.
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
    :param bucket_bytes: minimum bytes of a bucket. Only the last may be smaller.
    :param first_bytes: minimum bytes of the first bucket. None: ``bucket_bytes``.
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
    coalesce: bool = True,
) -> float:
    """Return the seconds until all ranks have finished a step with float32 gradients, if they begin at once.

    :param algorithm: one of :data:`~sparkdl_comm.collectives.algorithms.ALGORITHMS`.
    :param coalesce: run one rank for all equivalent ranks (see ``plan_run.py``). False: run every rank.
    """
    every = range(topology.world)
    engine = Engine()
    network = Network(engine, topology, cost, latency)
    ends = [computing.forward + computing.backward]

    def reduced(part: int) -> None:
        ends.append(engine.now)

    marks = [0] * topology.world if coalesce and network.can_be_alike else every
    [followed] = make_scripts(algorithm, ["all_reduce"], computing.buckets, topology, cost, marks)
    for number, bucket in enumerate(computing.buckets):
        parts = followed[bucket.elements]
        run = PlanRun(network, parts, every, ITEMSIZE, number, reduced)
        for part in range(len(parts.parts)):
            engine.at(computing.forward + bucket.seconds, partial(run.begin, part))
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


#: Steps to simulate, and how many of the last ones to average, when step times have settled.
_RUN, _AVERAGED = 6, 4
_HALVES: tuple[Operation, ...] = ("reduce_scatter", "all_gather")


def decoupled_seconds(
    algorithm: str,
    topology: Topology,
    computing: ComputeTimings,
    cost: Cost,
    *,
    latency: float = 0.0,
    coalesce: bool = True,
) -> float:
    """Return the seconds of a step with float32 parameters, when step times have settled.

    A bucket takes the same share of the time in forward as in backward.

    :param algorithm: a collective that has reduce-scatters and all-gathers.
    :param coalesce: run one rank for all equivalent ranks (see ``plan_run.py``). False: run every rank.
    """
    engine = Engine()
    network = Network(engine, topology, cost, latency)
    marks = [0] * topology.world if coalesce and network.can_be_alike else range(topology.world)
    reducing, gathering = make_scripts(algorithm, _HALVES, computing.buckets, topology, cost, marks)
    sizes = [bucket.elements for bucket in computing.buckets]

    def runs(lane: int, followed: dict[int, Script], order: Sequence[int]) -> list[dict[int, _Exchange]]:
        """Return for each step the exchange of each bucket, in the order in which they begin."""
        numbers = itertools.count()
        return [
            {bucket: _Exchange(network, followed[sizes[bucket]], next(numbers), lane) for bucket in order}
            for _ in range(_RUN)
        ]

    backward, early_count = range(len(sizes)), count_early_buckets(sizes)
    reduced = runs(0, reducing, backward)
    gathered = runs(1, gathering, [*reversed(backward[:early_count]), *reversed(backward[early_count:])])
    begin_times: list[list[float]] = [[] for _ in range(_RUN)]

    def note(step: int) -> None:
        begin_times[step].append(engine.now)

    for part in range(len(reducing[sizes[0]].parts)):
        _advance(engine, part, _rank_actions(part, topology.world, computing, reduced, gathered, early_count, note))
    engine.run(math.inf)
    return (max(begin_times[-1]) - max(begin_times[-1 - _AVERAGED])) / _AVERAGED


def _rank_actions(
    part: int,
    world: int,
    computing: ComputeTimings,
    reduced: Sequence[Mapping[int, _Exchange]],
    gathered: Sequence[Mapping[int, _Exchange]],
    early_count: int,
    on_begin: Callable[[int], None],
) -> Iterator[float | _Exchange]:
    """Yield the actions of a rank in all steps: seconds of computing, or an exchange to wait for.

    Between them, begin the rank's exchanges as soon as their buckets are ready.

    :param part: class of equivalent ranks that this rank stands for (see ``plan_run.py``).
    :param world: number of ranks. Each makes an equal share of the update.
    :param reduced: for each step, the reduce-scatter of each bucket.
    :param gathered: for each step, the all-gather of each bucket.
    :param early_count: number of buckets whose all-gather begins during backward, once their reduce-scatters are over.
    :param on_begin: called with the number of each step when the step begins.
    """
    buckets = computing.buckets
    ready = [bucket.seconds for bucket in buckets]
    spans = [later - sooner for sooner, later in zip([0.0, *ready], [*ready, computing.backward], strict=True)]
    total = sum(spans[: len(buckets)]) or 1.0
    for step in range(_RUN):
        on_begin(step)
        for number in reversed(range(len(buckets))):
            if step:
                yield gathered[step - 1][number]
            yield computing.forward * spans[number] / total
        early = [reduced[step][number] for number in range(early_count)]
        for number, exchange in reduced[step].items():
            yield spans[number]
            exchange.begin(part)
            if all(one.is_over(part) for one in early):
                for one in itertools.islice(gathered[step].values(), early_count):
                    one.begin(part)
        yield spans[-1]
        yield from reduced[step].values()
        yield computing.update / world
        for one in gathered[step].values():
            one.begin(part)


class _Exchange:
    """Exchange of one bucket in one step."""

    def __init__(self, network: Network, followed: Script, number: int, lane: int) -> None:
        ranks = range(network.topology.world)
        self._run = PlanRun(network, followed, ranks, ITEMSIZE, number, self._ended, lane)
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self._waiting: dict[int, Action] = {}

    def begin(self, part: int) -> None:
        """Begin the exchange, unless it has begun."""
        if part not in self._started:
            self._started.add(part)
            self._run.begin(part)

    def is_over(self, part: int) -> bool:
        return part in self._finished

    def call_when_over(self, part: int, act: Action) -> None:
        """Call ``act`` when the exchange is over, or at once if it is over already."""
        if part in self._finished:
            act()
        else:
            self._waiting[part] = act

    def _ended(self, part: int) -> None:
        self._finished.add(part)
        self._waiting.pop(part, lambda: None)()


def _advance(engine: Engine, part: int, actions: Iterator[float | _Exchange]) -> None:
    """Run a rank's actions until it waits for something that has not happened yet."""
    following = next(actions, None)
    if isinstance(following, _Exchange):
        following.call_when_over(part, lambda: _advance(engine, part, actions))
    elif following is not None:
        engine.after(following, lambda: _advance(engine, part, actions))
