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
from sparkdl_comm.compress.predict import predict_sparse
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import CHEAPEST, DECOUPLED_IBATCH, HITOPK, IBATCH, SERVER, loop_name
from sparkdl_comm.errors import ConfError
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
_FETCHING = 2
#: Iterations that the server's planner profiles under auto: too few for trials of its own, because auto runs the trials.
_PROFILED = 2
#: Unmeasured steps of the parameter server: while its JVMs compile; and before a plan takes effect: the first step, the
#: profiled ones, and the first one with the plan.
_COMPILING, _PLANNING = 2, _PROFILED + 2
#: Simulated steps, and number of the last ones whose mean is returned.
_RUN, _TOLD = 6, 4
_ITEMSIZE = 4


@dataclass(frozen=True)
class Candidate:
    """Candidate strategy, set by ``conf``.

    ``family``: name shared by similar candidates. ``settling``: number of steps until its step time is steady; None: the
    usual number. ``planned``: True if iBatch's planner cuts its buckets; ``parts``: these buckets, once they are planned.
    """

    name: str
    family: str
    conf: CommConf
    settling: int | None = None
    planned: bool = False
    parts: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def decoupled(cls, algorithm: str, conf: CommConf, *, planned: bool = False) -> Candidate:
        """Return the decoupled loop of ``algorithm``, with the other settings of ``conf``."""
        conf = replace(conf, strategy=algorithm, loop="decoupled", batching="fixed")
        name = loop_name(algorithm, conf.loop, IBATCH if planned else conf.batching)
        return cls(name, "decoupled", conf, planned=planned)


@dataclass(frozen=True)
class Computing:
    """Compute times of a rank in one step, in seconds.

    ``forward``: everything before the last backward pass. ``arrivals``: for each parameter, the time from the start of that
    pass until its gradient was ready.
    """

    forward: float
    backward: float
    update: float
    arrivals: tuple[float, ...]


def able(
    conf: CommConf,
    topology: Topology,
    *,
    unstriped: str | None,
    plugin: str | None,
    planner: str | None,
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates that can run, and the reasons why others cannot, by name. The fit begins with the first candidate.

    Decoupled collectives with planned buckets are candidates only if ``auto.candidates`` names them. They come last.

    :param unstriped: why the optimizer cannot update stripes of parameters; None if it can.
    :param plugin: why there is no parameter server; None if there is one.
    :param planner: why buckets of collectives cannot be planned; None if they can.
    """
    single, conf = conf.compression is not None, replace(conf, loop="all-reduce")
    names = [] if single else [algorithm.name for algorithm in list_eligible("all_reduce", topology)]
    found = [Candidate(name, "all-reduce", replace(conf, strategy=name)) for name in [CHEAPEST, *names]]
    found += [Candidate.decoupled(name, conf) for name in names]
    found += [Candidate(HITOPK, HITOPK, replace(conf, strategy=HITOPK))] * single
    tried = (*SIMPLE_BATCHINGS, IBATCH)
    for batching in tried if conf.ps_batching in ("whole", IBATCH) else (conf.ps_batching,):
        of_server = replace(conf, strategy=SERVER, ps_batching=batching)
        profiled = batching not in SIMPLE_BATCHINGS and not batching.startswith("fixed")
        if profiled:
            of_server = replace(of_server, ps_profile_iterations=min(conf.ps_profile_iterations, _PROFILED))
        settling = _PLANNING if profiled else _COMPILING
        found.append(Candidate(f"{SERVER}+{batching}", f"{SERVER}+{batching}", of_server, settling))
    found += [
        Candidate.decoupled(name, conf, planned=True)
        for name in names
        if f"{name}{DECOUPLED_IBATCH}" in conf.auto_candidates
    ]
    reasons = {
        each.name: (planner if each.planned else None) or _unfit(each, topology, unstriped, plugin) for each in found
    }
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    return [each for each in found if each.name not in left_out], left_out


def _unfit(candidate: Candidate, topology: Topology, unstriped: str | None, plugin: str | None) -> str | None:
    conf, kind = candidate.conf, load_strategy(candidate.conf)
    try:
        kind.check(conf, topology.world)
    except ConfError as error:
        return error.message
    if conf.auto_candidates and candidate.name not in conf.auto_candidates:
        return f"not in {PREFIX}auto.candidates"
    if candidate.name == CHEAPEST:
        return None
    if topology.world == 1:
        return "there is one rank"
    if conf.compression is not None:
        if conf.compression_momentum or conf.compression.rank:
            return "the state of powersgd and momentum correction cannot move to another strategy"
        if conf.compression_schedule.auto:
            return f"{PREFIX}compression.schedule={conf.compression_schedule} has a trial of its own"
    if kind.cuts_tensors and conf.resync:
        return f"{PREFIX}collective.resync={conf.resync} needs a strategy in which every rank updates all parameters"
    if kind.needs_plugin and plugin is not None:
        return plugin
    return unstriped if kind.cuts_tensors else None


class Predictor:
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

    def seconds(self, candidate: Candidate, computing: Computing) -> float:
        """Return the predicted seconds of a step."""
        conf = candidate.conf
        if conf.strategy == SERVER:
            return self._served(conf, computing)
        buckets = candidate.parts or self.space.buckets(conf.bucket / _ITEMSIZE)
        sizes = [stop - start for start, stop in buckets]
        if conf.compression is not None:
            name = "naive-ag" if conf.strategy == CHEAPEST else conf.strategy
            first = self._compressed(name, conf, sizes)
        elif conf.loop == "decoupled":
            first, second = self.halves(conf, sizes)
            return step_seconds(computing, self.space, buckets, first, second, 1 / self._topology.world)
        else:
            first = self._collectives(conf.strategy, "all_reduce", sizes, conf)
        return step_seconds(computing, self.space, buckets, first)

    def halves(self, conf: CommConf, sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return the seconds of each bucket's gradients, and of its parameters, in a decoupled collective.

        ``sizes``: elements of each bucket.
        """
        scatters = "reduce_scatter" in ALGORITHMS[conf.strategy].operations
        there: Operation = "reduce_scatter" if scatters else "reduce"
        back: Operation = "all_gather" if scatters else "broadcast"
        name = conf.strategy
        return self._collectives(name, there, sizes, conf), self._collectives(name, back, sizes, conf)

    def cheapest(self, conf: CommConf) -> str | None:
        """Return the algorithm that is the cheapest for every bucket; None if buckets differ."""
        buckets = self.space.buckets(conf.bucket / _ITEMSIZE)
        best = {self._cheapest("all_reduce", _rounded(stop - start)) for start, stop in buckets}
        return best.pop() if len(best) == 1 else None

    def _collectives(self, name: str, operation: Operation, sizes: Sequence[int], conf: CommConf) -> list[float]:
        found = []
        for size in sizes:
            more = _rounded(size)
            algorithm = self._cheapest(operation, more) if name == CHEAPEST else name
            less, most = (
                self._collective(algorithm, operation, near, conf.block) for near in (max(1, more // 2), more)
            )
            found.append(most + (most - less) * (size - more) / max(1, more // 2))
        return found

    def _collective_seconds(self, name: str, operation: Operation, count: int, block: int) -> float:
        return predict(name, operation, self._topology, count, _ITEMSIZE, self._cost, block).seconds

    def _cheapest(self, operation: Operation, count: int) -> str:
        names = [algorithm.name for algorithm in list_eligible(operation, self._topology)]
        return min(names, key=lambda name: self._collective(name, operation, count, 0))

    def _compressed(self, name: str, conf: CommConf, sizes: Sequence[int]) -> list[float]:
        assert conf.compression is not None
        count, density = self.space.count, conf.compression.density
        if conf.compression.rank:
            return self._collectives(CHEAPEST, "all_reduce", sizes, conf)
        found = {each.algorithm: each for each in predict_sparse(self._topology, count, density, self._cost)}
        return [found[name].seconds * size / count for size in sizes]

    def _served(self, conf: CommConf, computing: Computing) -> float:
        """Return the seconds of a step of the parameter server. The ranks of a host share its first NIC.

        A planned cut is predicted as the best equal cut; the planner considers more cuts. If that cut gains no more than
        chance over the best unplanned one, the prediction is that of the unplanned one.
        """
        topology = self._topology
        beside = topology.ranks_per_host * (topology.world - topology.ranks_per_host) / topology.world
        if conf.compression is not None:
            beside *= (1 + 1.5 * conf.compression.density) / 2  # whole parameters, 6 bytes per sent gradient
        forward, backward = by_layer(self.space, computing)
        layers = [
            ServedLayer(before, after, _ITEMSIZE * layer.count * beside)
            for before, after, layer in zip(forward, backward, self.space.layers, strict=True)
        ]
        nbytes = sum(layer.nbytes for layer in layers)
        updating = computing.update / topology.world / nbytes if nbytes else 0.0
        assert self._server is not None, "it is measured where the server is a candidate"
        cost = ServerCost(
            self._cost.betas[0],
            startup=self._server.startup + _FETCHING * self._cost.alpha,
            summing=self._cost.gamma,
            updating=updating,
            handling=self._server.handling,
        )

        def taken(batches: Sequence[Batch]) -> float:
            return iteration_seconds(layers, batches, batches, cost)

        if conf.ps_batching in SIMPLE_BATCHINGS:
            return taken(SIMPLE_BATCHINGS[conf.ps_batching](len(layers)))
        plain = min(taken(cut(len(layers))) for cut in SIMPLE_BATCHINGS.values())
        planned = min(map(taken, equal_cuts([layer.nbytes for layer in layers])), default=plain)
        return planned if planned < (1 - MARGIN) * plain else plain


def step_seconds(
    computing: Computing,
    space: ParameterSpace,
    buckets: Sequence[tuple[int, int]],
    first: Sequence[float],
    second: Sequence[float] | None = None,
    share: float = 1.0,
) -> float:
    """Return the seconds of a step in the steady state.

    :param first: seconds to exchange each bucket's gradients.
    :param second: seconds to exchange each bucket's parameters, during the next forward pass and, for the last third, during
        backward. None: parameters do not travel.
    :param share: fraction of the parameters that a rank updates.
    """
    ready = [_ready(computing, space, bucket) for bucket in buckets]
    spans = [later - sooner for sooner, later in zip([0.0, *ready], [*ready, computing.backward], strict=False)]
    total = sum(spans) or 1.0
    forward = [computing.forward * span / total for span in spans]
    ahead = 0 if second is None else count_early_buckets([stop - start for start, stop in buckets])
    here = [0.0] * len(buckets)
    now = free = 0.0
    begun = []
    for _ in range(_RUN):
        begun.append(now)
        for number in reversed(range(len(buckets))):
            now = max(now, here[number]) + forward[number]
        reduced = 0.0
        for number, taken in enumerate(first):
            reduced = free = max(free, now + ready[number]) + taken
            if second is not None and number < ahead:
                here[number] = free = free + second[number]
        now = max(now + computing.backward, reduced) + computing.update * share
        for number in reversed(range(ahead, len(buckets))) if second is not None else ():
            here[number] = free = max(free, now) + (0.0 if second is None else second[number])
    return (begun[-1] - begun[-1 - _TOLD]) / _TOLD


def _ready(computing: Computing, space: ParameterSpace, bucket: tuple[int, int]) -> float:
    start, stop = bucket
    return max(
        arrival for arrival, entry in zip(computing.arrivals, space.entries, strict=True) if start <= entry.start < stop
    )


def by_layer(space: ParameterSpace, computing: Computing) -> tuple[list[float], list[float]]:
    """Return the seconds of forward, and of backward, of each layer.

    Backward runs from the last layer to the first. A layer's share of forward is assumed to equal its share of backward.
    """
    made, before = [0.0] * len(space.layers), 0.0
    for arrival, layer in sorted(zip(computing.arrivals, space.layer_of_each, strict=True)):
        made[layer] += arrival - before
        before = arrival
    return [seconds * computing.forward / (computing.backward or 1.0) for seconds in made], made


def _rounded(count: int) -> int:
    """Return ``count`` rounded up to a power of two: to price a plan for every size can take longer than to run it."""
    return 1 << max(0, count - 1).bit_length()
