"""Candidates of strategy ``auto``, and predictions of their step times. Pure.

A step is forward, backward, and transfers.

- Collectives: a bucket of gradients is sent as soon as backward has made it and the bucket before has been sent. Parameters
  travel in the same way, and forward waits for them. The cost model (``collectives/select.py``) gives the time of each bucket.
- The parameter server: its steps are simulated (``sim/server_run.py``), with the measured overhead of the JVMs
  (``ps/probe.py``).

The compute times were measured in the fit's first steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.select import list_eligible, predict
from sparkdl_comm.compress.hitopk import predict_sparse
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import CHEAPEST, DECOUPLED_IBATCH, HITOPK, IBATCH, SERVER, loop_name
from sparkdl_comm.errors import ConfError, PluginError
from sparkdl_comm.sim.server_run import (
    SIMPLE_BATCHINGS,
    Batch,
    Overhead,
    ServedLayer,
    ServerCost,
    equal_cuts,
    iteration_seconds,
)
from sparkdl_comm.space.layer_buckets import count_early_buckets
from sparkdl_comm.space.parameter_space import ParameterSpace
from sparkdl_comm.strategies.choice import MARGIN
from sparkdl_comm.strategies.registry import load_strategy
from sparkdl_comm.topology import Topology

#: Messages in sequence that fetch a batch from the server, unless it travels inside its notice: request and answer. They are
#: assumed to cost as much as messages of collectives.
_FETCH_MESSAGES = 2
#: Iterations that the server's planner profiles under auto: too few for trials of its own, because auto runs the trials.
_PROFILED_STEPS = 2
#: Unmeasured steps of the parameter server: while its JVMs compile; and before a plan takes effect: the first step, the
#: profiled ones, and the first one with the plan.
_COMPILING_STEPS, _PLANNING_STEPS = 2, _PROFILED_STEPS + 2
#: Simulated steps, and number of the last ones whose mean is returned.
_SIMULATED_STEPS, _AVERAGED_STEPS = 6, 4
_ITEM_BYTES = 4


@dataclass(frozen=True)
class Candidate:
    """Candidate strategy, set by ``conf``.

    ``family``: name shared by similar candidates. ``settling``: number of steps until its step time is steady; None: the
    usual number. ``is_planned``: True if iBatch's planner cuts its buckets; ``parts``: these buckets, once they are planned.
    """

    name: str
    family: str
    conf: CommConf
    settling: int | None = None
    is_planned: bool = False
    parts: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def decoupled(cls, algorithm: str, conf: CommConf, *, is_planned: bool = False) -> Candidate:
        """Return the decoupled loop of ``algorithm``, with the other settings of ``conf``."""
        settings = replace(conf.collective, loop="decoupled", batching="fixed")
        conf = replace(conf, strategy=algorithm, collective=settings)
        name = loop_name(algorithm, settings.loop, IBATCH if is_planned else settings.batching)
        return cls(name, "decoupled", conf, is_planned=is_planned)


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


def find_candidates(
    conf: CommConf,
    topology: Topology,
    *,
    why_not_striped: str | None,
    why_no_plugin: str | None,
    why_no_planner: str | None,
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates that can run, and the reasons why others cannot, by name. The fit begins with the first candidate.

    Decoupled collectives with planned buckets are candidates only if ``auto.candidates`` names them. They come last. With
    ``collective.batching=ibatch`` the candidates are the fixed and the planned buckets of ``conf.strategy``, decoupled.

    :param why_not_striped: why the optimizer cannot update stripes of parameters; None if it can.
    :param why_no_plugin: why there is no parameter server; None if there is one.
    :param why_no_planner: why buckets of collectives cannot be planned; None if they can.
    :raises PluginError: ``collective.batching=ibatch``, and buckets cannot be planned.
    """
    if conf.collective.batching != "fixed":
        if why_no_planner is not None:
            raise PluginError(f"{PREFIX}collective.batching={conf.collective.batching}: {why_no_planner}")
        fixed, planned = (
            Candidate.decoupled(conf.strategy, conf, is_planned=is_planned) for is_planned in (False, True)
        )
        reason = "there is one rank" if topology.world == 1 else why_not_striped
        return ([fixed], {planned.name: reason}) if reason else ([fixed, planned], {})
    is_compressed = conf.compression.method is not None
    conf = replace(conf, collective=replace(conf.collective, loop="all-reduce"))
    names = [] if is_compressed else [algorithm.name for algorithm in list_eligible("all_reduce", topology)]
    found = [Candidate(name, "all-reduce", replace(conf, strategy=name)) for name in [CHEAPEST, *names]]
    found += [Candidate.decoupled(name, conf) for name in names]
    found += [Candidate(HITOPK, HITOPK, replace(conf, strategy=HITOPK))] * is_compressed
    batchings = (*SIMPLE_BATCHINGS, IBATCH)
    for batching in batchings if conf.ps.batching in ("whole", IBATCH) else (conf.ps.batching,):
        settings = replace(conf.ps, batching=batching)
        is_profiled = batching not in SIMPLE_BATCHINGS and not batching.startswith("fixed")
        if is_profiled:
            settings = replace(settings, profile_iterations=min(conf.ps.profile_iterations, _PROFILED_STEPS))
        settling = _PLANNING_STEPS if is_profiled else _COMPILING_STEPS
        server_conf = replace(conf, strategy=SERVER, ps=settings)
        found.append(Candidate(f"{SERVER}+{batching}", f"{SERVER}+{batching}", server_conf, settling))
    found += [
        Candidate.decoupled(name, conf, is_planned=True)
        for name in names
        if f"{name}{DECOUPLED_IBATCH}" in conf.auto.candidates
    ]
    reasons = {
        each.name: (why_no_planner if each.is_planned else None)
        or _why_ineligible(each, topology, why_not_striped, why_no_plugin)
        for each in found
    }
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    return [each for each in found if each.name not in left_out], left_out


def _why_ineligible(
    candidate: Candidate, topology: Topology, why_not_striped: str | None, why_no_plugin: str | None
) -> str | None:
    conf, kind = candidate.conf, load_strategy(candidate.conf)
    try:
        kind.check(conf, topology.world)
    except ConfError as error:
        return error.message
    if conf.auto.candidates and candidate.name not in conf.auto.candidates:
        return f"not in {PREFIX}auto.candidates"
    if candidate.name == CHEAPEST:
        return None
    if topology.world == 1:
        return "there is one rank"
    if conf.compression.method is not None:
        if conf.compression.momentum or conf.compression.method.rank:
            return "the state of powersgd and momentum correction cannot move to another strategy"
        if conf.compression.schedule.auto:
            return f"{PREFIX}compression.schedule={conf.compression.schedule} has a trial of its own"
    if kind.has_stripes and conf.collective.resync:
        setting = f"{PREFIX}collective.resync={conf.collective.resync}"
        return f"{setting} needs a strategy in which every rank updates all parameters"
    if kind.needs_plugin and why_no_plugin is not None:
        return why_no_plugin
    return why_not_striped if kind.has_stripes else None


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
            ServedLayer(before, after, _ITEM_BYTES * layer.count * nic_factor)
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
