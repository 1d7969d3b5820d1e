"""Predictions of the candidates' step times, and buckets of collectives cut by iBatch's planner. Pure.

A step is forward, backward, and transfers.

- Collectives: a bucket of gradients is sent as soon as backward has made it and the bucket before has been sent. Parameters
  travel in the same way, and forward waits for them. The cost model (``collectives/cost.py``) gives the time of each bucket.
- The parameter server: its steps are simulated (``sim/server_run.py``), with the measured overhead of the JVMs
  (``timing.py``).

The compute times were measured in the fit's first steps.

The planner (``jvm/planner.py``) cuts parameters and gradients separately. In a decoupled collective each rank owns a part of
each bucket, so both directions need the same buckets. :func:`plan_candidate` tries the planner's cuts for both directions, and
equal cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sparkdl_comm.autotune.choice import MARGIN, Candidate
from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost, list_eligible, predict
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import CHEAPEST, SERVER
from sparkdl_comm.jvm.planner import Bucketing
from sparkdl_comm.sim.server_run import (
    SIMPLE_BATCHINGS,
    Batch,
    Overhead,
    ServerCost,
    TimedLayer,
    equal_cuts,
    iteration_seconds,
)
from sparkdl_comm.space.parameter_space import ParameterSpace, count_early_buckets
from sparkdl_comm.topology import Topology

#: Messages in sequence that fetch a batch from the server, unless it travels inside its notice: request and answer. They are
#: assumed to cost as much as messages of collectives.
_FETCH_MESSAGES = 2
#: Simulated steps, and number of the last ones whose mean is returned.
_SIMULATED_STEPS, _AVERAGED_STEPS = 6, 4
_ITEM_BYTES = 4

#: Policies of the planner that are tried: the paper's two algorithms, the exact optimum, and the two trivial cuts.
_POLICIES = ("greedy1", "greedy2", "optimal", "whole", "layerwise")
#: Ratio of the two message sizes whose predicted times give the start-up time and the time per element.
_SIZE_RATIO = 16


@dataclass(frozen=True)
class StepTimings:
    """Compute times of a rank in one step, in seconds.

    ``forward``: everything before the last backward pass. ``arrivals``: for each parameter, the time from the start of that
    pass until its gradient was ready.
    """

    forward: float
    backward: float
    update: float
    arrivals: tuple[float, ...]


class StepPredictor:
    """Predictor of a model's step times, for ranks on ``topology`` with links of ``cost``.

    :param server: overhead of the parameter server; None if it is no candidate.
    """

    def __init__(
        self,
        space: ParameterSpace,
        topology: Topology,
        cost: Cost,
        server: Overhead | None = None,
    ) -> None:
        self.space = space
        self._topology, self._cost, self._server = topology, cost, server
        self._collective = cache(self._collective_seconds)

    def predict(self, candidate: Candidate, computing: StepTimings) -> float:
        """Return the predicted seconds of a step."""
        conf = candidate.conf
        if conf.strategy == SERVER:
            return self._predict_server(conf, computing)
        buckets = candidate.parts or self.space.buckets(conf.collective.bucket / _ITEM_BYTES)
        sizes = [stop - start for start, stop in buckets]
        if conf.compression.method is not None:
            name = "naive-ag" if conf.strategy == CHEAPEST else conf.strategy
            gradient_seconds = self._predict_compressed(name, conf, sizes)
        elif conf.collective.loop == "decoupled":
            gradient_seconds, parameter_seconds = self.predict_halves(conf, sizes)
            return predict_step_seconds(
                computing, self.space, buckets, gradient_seconds, parameter_seconds, 1 / self._topology.world
            )
        else:
            gradient_seconds = self._predict_collectives(conf.strategy, "all_reduce", sizes, conf)
        return predict_step_seconds(computing, self.space, buckets, gradient_seconds)

    def predict_halves(self, conf: CommConf, sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return the seconds of each bucket's gradients, and of its parameters, in a decoupled collective.

        ``sizes``: elements of each bucket.
        """
        scatters = "reduce_scatter" in ALGORITHMS[conf.strategy].operations
        reducing: Operation = "reduce_scatter" if scatters else "reduce"
        gathering: Operation = "all_gather" if scatters else "broadcast"
        name = conf.strategy
        gradient_seconds = self._predict_collectives(name, reducing, sizes, conf)
        return gradient_seconds, self._predict_collectives(name, gathering, sizes, conf)

    def find_cheapest(self, conf: CommConf) -> str | None:
        """Return the algorithm that is the cheapest for every bucket; None if buckets differ."""
        buckets = self.space.buckets(conf.collective.bucket / _ITEM_BYTES)
        best = {self._find_cheapest("all_reduce", _round_up(stop - start)) for start, stop in buckets}
        return best.pop() if len(best) == 1 else None

    def _predict_collectives(
        self, name: str, operation: Operation, sizes: Sequence[int], conf: CommConf
    ) -> list[float]:
        found = []
        for size in sizes:
            more = _round_up(size)
            algorithm = self._find_cheapest(operation, more) if name == CHEAPEST else name
            less, most = (
                self._collective(algorithm, operation, near, conf.collective.block)
                for near in (max(1, more // 2), more)
            )
            found.append(most + (most - less) * (size - more) / max(1, more // 2))
        return found

    def _collective_seconds(self, name: str, operation: Operation, count: int, block: int) -> float:
        return predict(name, operation, self._topology, count, _ITEM_BYTES, self._cost, block).seconds

    def _find_cheapest(self, operation: Operation, count: int) -> str:
        names = [algorithm.name for algorithm in list_eligible(operation, self._topology)]
        return min(names, key=lambda name: self._collective(name, operation, count, 0))

    def _predict_compressed(self, name: str, conf: CommConf, sizes: Sequence[int]) -> list[float]:
        from sparkdl_comm.compress.hitopk import predict_sparse

        assert conf.compression.method is not None
        count, density = self.space.count, conf.compression.method.density
        if conf.compression.method.rank:
            return self._predict_collectives(CHEAPEST, "all_reduce", sizes, conf)
        found = {each.algorithm: each for each in predict_sparse(self._topology, count, density, self._cost)}
        return [found[name].seconds * size / count for size in sizes]

    def _predict_server(self, conf: CommConf, computing: StepTimings) -> float:
        """Return the seconds of a step of the parameter server. The ranks of a host share its first NIC.

        A planned cut is predicted as the best equal cut; the planner considers more cuts. If that cut gains no more than
        chance over the best unplanned one, the prediction is that of the unplanned one.
        """
        topology = self._topology
        nic_factor = topology.ranks_per_host * (topology.world - topology.ranks_per_host) / topology.world
        if conf.compression.method is not None:
            nic_factor *= (1 + 1.5 * conf.compression.method.density) / 2  # whole parameters, 6 bytes per sent gradient
        forward, backward = split_by_layer(self.space, computing)
        layers = [
            TimedLayer(before, after, _ITEM_BYTES * layer.count * nic_factor)
            for before, after, layer in zip(forward, backward, self.space.layers, strict=True)
        ]
        nbytes = sum(layer.nbytes for layer in layers)
        update_seconds = computing.update / topology.world / nbytes if nbytes else 0.0
        assert self._server is not None, "it is measured where the server is a candidate"
        cost = ServerCost(
            self._cost.betas[0],
            startup=self._server.startup + _FETCH_MESSAGES * self._cost.alpha,
            summing=self._cost.gamma,
            updating=update_seconds,
            handling=self._server.handling,
        )

        def simulate(batches: Sequence[Batch]) -> float:
            return iteration_seconds(layers, batches, batches, cost)

        if conf.ps.batching in SIMPLE_BATCHINGS:
            return simulate(SIMPLE_BATCHINGS[conf.ps.batching](len(layers)))
        unplanned = min(simulate(cut(len(layers))) for cut in SIMPLE_BATCHINGS.values())
        planned = min(map(simulate, equal_cuts([layer.nbytes for layer in layers])), default=unplanned)
        return planned if planned < (1 - MARGIN) * unplanned else unplanned


def predict_step_seconds(
    computing: StepTimings,
    space: ParameterSpace,
    buckets: Sequence[tuple[int, int]],
    gradient_seconds: Sequence[float],
    parameter_seconds: Sequence[float] | None = None,
    owned_fraction: float = 1.0,
) -> float:
    """Return the seconds of a step in the steady state.

    :param gradient_seconds: seconds to exchange each bucket's gradients.
    :param parameter_seconds: seconds to exchange each bucket's parameters, during the next forward pass and, for the last
        third, during backward. None: parameters do not travel.
    :param owned_fraction: fraction of the parameters that a rank updates.
    """
    ready = [_get_ready_seconds(computing, space, bucket) for bucket in buckets]
    spans = [later - sooner for sooner, later in zip([0.0, *ready], [*ready, computing.backward], strict=False)]
    total = sum(spans) or 1.0
    forward = [computing.forward * span / total for span in spans]
    ahead_count = 0 if parameter_seconds is None else count_early_buckets([stop - start for start, stop in buckets])
    arrived_at = [0.0] * len(buckets)
    now = link_free_at = 0.0
    begin_times = []
    for _ in range(_SIMULATED_STEPS):
        begin_times.append(now)
        for number in reversed(range(len(buckets))):
            now = max(now, arrived_at[number]) + forward[number]
        reduced = 0.0
        for number, seconds in enumerate(gradient_seconds):
            reduced = link_free_at = max(link_free_at, now + ready[number]) + seconds
            if parameter_seconds is not None and number < ahead_count:
                arrived_at[number] = link_free_at = link_free_at + parameter_seconds[number]
        now = max(now + computing.backward, reduced) + computing.update * owned_fraction
        for number in reversed(range(ahead_count, len(buckets))) if parameter_seconds is not None else ():
            arrived_at[number] = link_free_at = max(link_free_at, now) + (
                0.0 if parameter_seconds is None else parameter_seconds[number]
            )
    return (begin_times[-1] - begin_times[-1 - _AVERAGED_STEPS]) / _AVERAGED_STEPS


def _get_ready_seconds(computing: StepTimings, space: ParameterSpace, bucket: tuple[int, int]) -> float:
    start, stop = bucket
    return max(
        arrival for arrival, entry in zip(computing.arrivals, space.entries, strict=True) if start <= entry.start < stop
    )


def split_by_layer(space: ParameterSpace, computing: StepTimings) -> tuple[list[float], list[float]]:
    """Return the seconds of forward, and of backward, of each layer.

    Backward runs from the last layer to the first. A layer's share of forward is assumed to equal its share of backward.
    """
    made, before = [0.0] * len(space.layers), 0.0
    for arrival, layer in sorted(zip(computing.arrivals, space.layer_of_each, strict=True)):
        made[layer] += arrival - before
        before = arrival
    return [seconds * computing.forward / (computing.backward or 1.0) for seconds in made], made


def _round_up(count: int) -> int:
    """Return ``count`` rounded up to a power of two: to price a plan for every size can take longer than to run it."""
    return 1 << max(0, count - 1).bit_length()


def plan_candidate(
    predictor: StepPredictor,
    candidate: Candidate,
    computing: StepTimings,
    plan: Callable[[Sequence[Mapping[str, Any]]], Sequence[Bucketing]],
) -> Candidate:
    """Return ``candidate`` with the fewest buckets whose predicted step is within :data:`~.choice.MARGIN` of the fastest.

    :param plan: :func:`~sparkdl_comm.jvm.planner.plan_buckets`, whose errors are passed on.
    """
    space = predictor.space
    sizes = [layer.count for layer in space.layers]
    profiles = [
        (direction, *_fit_linear(taken, sizes), compute)
        for direction, taken, compute in zip(
            ("push", "pull"),
            predictor.predict_halves(candidate.conf, [max(1, space.count // _SIZE_RATIO), space.count]),
            reversed(split_by_layer(space, computing)),
            strict=True,
        )
    ]
    requests = [
        {"startup": startup, "transfer": transfer, "compute": compute, "policy": policy, "direction": direction}
        for direction, startup, transfer, compute in profiles
        for policy in _POLICIES
    ]
    cuts = [sorted((first - 1, last - 1) for first, last in answer.batches) for answer in plan(requests)]
    choices = dict.fromkeys(_to_ranges(space, cut) for cut in [*cuts, *equal_cuts(sizes)])
    candidates = [replace(candidate, parts=parts) for parts in choices]
    taken = [predictor.predict(each, computing) for each in candidates]
    near = [parts for parts, seconds in zip(choices, taken, strict=True) if seconds <= (1 + MARGIN) * min(taken)]
    return replace(candidate, parts=min(near, key=len))


def _fit_linear(taken: Sequence[float], sizes: Sequence[int]) -> tuple[float, list[float]]:
    """Return the start-up time of a message, and the transfer times of the layers, in seconds.

    The times are fitted to the predicted times of two messages.

    ``taken``: predicted seconds of a message with 1/16 of the elements, and of one with all elements. ``sizes``: elements
    of each layer.
    """
    few, whole = taken
    startup = min(whole, max(0.0, few - (whole - few) / (_SIZE_RATIO - 1)))
    each = (whole - startup) / sum(sizes)
    return startup, [each * size for size in sizes]


def _to_ranges(space: ParameterSpace, cut: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return element ranges for ``cut``: (first, last) layer of each bucket, from 0, in the order of the layers."""
    stretches = [space.stretch(range(first, last + 1)) for first, last in reversed(cut)]
    return tuple((stretch.start, stretch.stop) for stretch in stretches)
