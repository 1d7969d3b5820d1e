"""Among which strategies ``auto`` may choose in a fit, and what a step is predicted to take with each of them. Pure.

A step is forward, backward, and what travels. Of collectives, buckets of gradients follow each other over the links, each as
soon as backward has made it and the one before has been sent; parameters likewise, and forward waits for them. What a bucket
takes is what the cost model says (``collectives/select.py``); what is computed was measured in the fit's first steps. Steps of
the parameter server are simulated (``sim/server_run.py``), with what its way through the JVMs was measured to cost
(``ps/probe.py``), and so are as many updates of the fabric as there are ranks
(``sim/fabric_pace.py``), which have a step's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.select import fitting, predict
from sparkdl_comm.compress.predict import predict_sparse
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import BATCHED, PLANNED, SERVER, loop_name
from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.fabric_pace import seconds_per_round
from sparkdl_comm.sim.server_run import (
    UNPLANNED,
    Batch,
    Overhead,
    ServedLayer,
    ServerCost,
    equal_cuts,
    iteration_seconds,
)
from sparkdl_comm.space.layer_buckets import ahead_of
from sparkdl_comm.space.parameter_space import ParameterSpace
from sparkdl_comm.strategies.base import STRATEGIES
from sparkdl_comm.strategies.choice import MARGIN
from sparkdl_comm.topology import Topology

#: The strategy that takes whichever collective is the cheapest for each bucket, and the names of others.
CHEAPEST, HITOPK, FABRIC = "cheapest", "hitopk", "fabric"
#: Messages, one after another, by which a batch is fetched that does not travel inside of its notice: the request, the answer.
#: They are taken to cost what those of collectives do.
_FETCHING = 2
#: Likewise of the fabric, from a worker's update to its next model, beside both: ready, send, ended, applied, wanted, send.
_SCHEDULED = 6
#: Iterations after which the server's planner looks at a profile here: too few for trials of its own, as these are auto's.
_PROFILED = 2
#: Steps of the parameter server that are not measured: its JVMs compile; and of a plan: profiled ones, around them the first
#: one of all and the first one with the plan.
_COMPILING, _PLANNING = 2, _PROFILED + 2
#: Steps of which the last ones are told, when they have settled.
_RUN, _TOLD = 6, 4
_ITEMSIZE = 4


@dataclass(frozen=True)
class Candidate:
    """A strategy: that of ``conf``. ``family``: of candidates that are alike; ``settling``: steps until it is what it is going
    to be, if they are many. ``planned``: its buckets are cut by iBatch's planner, and are ``parts`` when they are."""

    name: str
    family: str
    conf: CommConf
    settling: int | None = None
    planned: bool = False
    parts: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def decoupled(cls, algorithm: str, conf: CommConf, *, planned: bool = False) -> Candidate:
        """``conf``: of which all but the strategy holds."""
        conf = replace(conf, strategy=algorithm, loop="decoupled", batching="fixed")
        name = loop_name(algorithm, conf.loop, PLANNED if planned else conf.batching)
        return cls(name, "decoupled", conf, planned=planned)


@dataclass(frozen=True)
class Computing:
    """What a rank computed in a step, in seconds: ``forward`` is all that comes before the last backward pass; ``arrivals``,
    from that one's beginning, when the gradient of each parameter was there."""

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
    apart: str | None,
    planner: str | None,
) -> tuple[list[Candidate], dict[str, str]]:
    """The candidates, the one to begin with first, and why others are left out, by name. The fabric, which is asynchronous, is
    one only where it is named, and then the last; so are decoupled collectives with planned buckets, and come before it.

    :param unstriped: why the optimizer cannot update stripes of parameters; None: it can.
    :param plugin: why there is no parameter server; None: there is.
    :param apart: why the model cannot be trained by the fabric; None: it can.
    :param planner: why buckets of collectives cannot be planned; None: they can.
    """
    single, conf = conf.compression is not None, replace(conf, loop="all-reduce")
    names = [] if single else [algorithm.name for algorithm in fitting("all_reduce", topology)]
    found = [Candidate(name, "all-reduce", replace(conf, strategy=name)) for name in [CHEAPEST, *names]]
    found += [Candidate.decoupled(name, conf) for name in names]
    found += [Candidate(HITOPK, HITOPK, replace(conf, strategy=HITOPK))] * single
    tried = (*UNPLANNED, PLANNED)
    for batching in tried if conf.ps_batching in ("whole", PLANNED) else (conf.ps_batching,):
        of_server = replace(conf, strategy=SERVER, ps_batching=batching)
        profiled = batching not in UNPLANNED and not batching.startswith("fixed")
        if profiled:
            of_server = replace(of_server, ps_profile_iterations=min(conf.ps_profile_iterations, _PROFILED))
        settling = _PLANNING if profiled else _COMPILING
        found.append(Candidate(f"{SERVER}+{batching}", f"{SERVER}+{batching}", of_server, settling))
    found += [
        Candidate.decoupled(name, conf, planned=True) for name in names if f"{name}{BATCHED}" in conf.auto_candidates
    ]
    found += [Candidate(FABRIC, FABRIC, replace(conf, strategy=FABRIC))] * (FABRIC in conf.auto_candidates)
    reasons = {
        each.name: (apart if each.name == FABRIC else planner if each.planned else None)
        or _unfit(each, topology, unstriped, plugin)
        for each in found
    }
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    return [each for each in found if each.name not in left_out], left_out


def _unfit(candidate: Candidate, topology: Topology, unstriped: str | None, plugin: str | None) -> str | None:
    conf, kind = candidate.conf, STRATEGIES[candidate.conf.strategy](candidate.conf)
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
            return "what powersgd and momentum correction keep from step to step is not handed over"
        if conf.compression_schedule.auto:
            return f"{PREFIX}compression.schedule={conf.compression_schedule} has a trial of its own"
    if kind.cuts_tensors and conf.resync:
        return f"{PREFIX}collective.resync={conf.resync} is for strategies by which every rank updates all parameters"
    if kind.needs_plugin and plugin is not None:
        return plugin
    return unstriped if kind.cuts_tensors or not kind.synchronous else None


class Predictor:
    """Predictor of steps of a model, whose ranks are on ``topology``, with links of ``cost``.

    :param server: of the parameter server; None where it is no candidate.
    :param each: seconds that each rank computes in a step, for the fabric.
    """

    def __init__(
        self,
        space: ParameterSpace,
        topology: Topology,
        cost: Cost,
        server: Overhead | None = None,
        each: Sequence[float] = (),
    ) -> None:
        self.space = space
        self._topology, self._cost, self._server, self._each = topology, cost, server, each
        self._collective = cache(self._collective_seconds)

    def seconds(self, candidate: Candidate, computing: Computing) -> float:
        """Of a step."""
        conf = candidate.conf
        if conf.strategy == SERVER:
            return self._served(conf, computing)
        if conf.strategy == FABRIC:
            messages = _SCHEDULED * self._cost.alpha
            workers = [seconds + messages for seconds in self._each]
            rate, nbytes = 1 / self._cost.betas[0], _ITEMSIZE * self.space.count
            hosts = len(self._topology.hosts)
            return seconds_per_round(workers, hosts, nbytes, rate, conf.fabric_sync, conf.fabric_batch_interval)
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
        """Seconds that the gradients, and the parameters, of buckets of so many elements take, of a decoupled collective."""
        scatters = "reduce_scatter" in ALGORITHMS[conf.strategy].operations
        there: Operation = "reduce_scatter" if scatters else "reduce"
        back: Operation = "all_gather" if scatters else "broadcast"
        name = conf.strategy
        return self._collectives(name, there, sizes, conf), self._collectives(name, back, sizes, conf)

    def cheapest(self, conf: CommConf) -> str | None:
        """The algorithm that is the cheapest for all buckets; None if it is not one alone."""
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
        names = [algorithm.name for algorithm in fitting(operation, self._topology)]
        return min(names, key=lambda name: self._collective(name, operation, count, 0))

    def _compressed(self, name: str, conf: CommConf, sizes: Sequence[int]) -> list[float]:
        assert conf.compression is not None
        count, density = self.space.count, conf.compression.density
        if conf.compression.rank:
            return self._collectives(CHEAPEST, "all_reduce", sizes, conf)
        found = {each.algorithm: each for each in predict_sparse(self._topology, count, density, self._cost)}
        return [found[name].seconds * size / count for size in sizes]

    def _served(self, conf: CommConf, computing: Computing) -> float:
        """With ranks that share their host's first NIC.

        The planner looks at more plans than equal cuts. One that gains no more than chance over plain batches is taken to be
        these, so that it is predicted to take what they do.
        """
        topology = self._topology
        beside = topology.slots * (topology.world - topology.slots) / topology.world
        if conf.compression is not None:
            beside *= (1 + 1.5 * conf.compression.density) / 2  # parameters are whole; six bytes of each that is sent
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

        if conf.ps_batching in UNPLANNED:
            return taken(UNPLANNED[conf.ps_batching](len(layers)))
        plain = min(taken(cut(len(layers))) for cut in UNPLANNED.values())
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
    """Seconds of a step, when steps have settled.

    :param first: what the exchange of each bucket's gradients takes.
    :param second: likewise of parameters, while the next forward pass begins, and of the last third while backward goes on;
        None: they do not travel.
    :param share: of the parameters that a rank updates.
    """
    ready = [_ready(computing, space, bucket) for bucket in buckets]
    spans = [later - sooner for sooner, later in zip([0.0, *ready], [*ready, computing.backward], strict=False)]
    total = sum(spans) or 1.0
    forward = [computing.forward * span / total for span in spans]
    ahead = 0 if second is None else ahead_of([stop - start for start, stop in buckets])
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
    """Seconds of forward and of backward of each layer. Backward goes from the last one to the first; each layer is taken to
    have as large a share of forward."""
    made, before = [0.0] * len(space.layers), 0.0
    for arrival, layer in sorted(zip(computing.arrivals, space.layer_of_each, strict=True)):
        made[layer] += arrival - before
        before = arrival
    return [seconds * computing.forward / (computing.backward or 1.0) for seconds in made], made


def _rounded(count: int) -> int:
    """Up to a power of two: costing all plans takes longer than running some."""
    return 1 << max(0, count - 1).bit_length()
