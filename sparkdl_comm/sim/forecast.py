"""Forecast of a fit's iteration time on another network, with another strategy or batching, and its bottleneck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf.strategy import DECOUPLED, SERVER
from sparkdl_comm.errors import ConfError, nearest
from sparkdl_comm.sim.network import ethernet_cost
from sparkdl_comm.sim.server_run import SIMPLE_BATCHINGS, Batch, ServerCost, TimedLayer, iteration_seconds
from sparkdl_comm.sim.step_run import ComputeTimings, cut, decoupled_seconds, step_seconds
from sparkdl_comm.sim.traced_timings import TracedTimings
from sparkdl_comm.topology import Topology

STRATEGIES = (
    SERVER,
    *ALGORITHMS,
    *(f"{one.name}{DECOUPLED}" for one in ALGORITHMS.values() if "reduce_scatter" in one.operations),
)
BATCHINGS = ("traced", *SIMPLE_BATCHINGS)


@dataclass(frozen=True)
class Setting:
    """Network and strategy of a forecast.

    :param strategy: one of :data:`STRATEGIES`.
    :param batching: batching of ps; "traced" is as in the timeline.
    :param bucket: minimum bytes of gradients that a collective reduces at once.
    :raises ConfError: there is no such strategy or batching, the strategy cannot run on the topology, or the topology
        has no rates.
    """

    topology: Topology
    strategy: str
    batching: str = "traced"
    bucket: int = 4 << 20

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfError(
                f"strategy {self.strategy!r} cannot be simulated: there are {', '.join(STRATEGIES)}"
                f"{nearest(self.strategy, STRATEGIES)}"
            )
        if self.batching not in BATCHINGS:
            raise ConfError(
                f"batching {self.batching!r} of {SERVER} cannot be simulated: there are {', '.join(BATCHINGS)}"
                f"{nearest(self.batching, BATCHINGS)}"
            )
        if not self.topology.rates:
            raise ConfError(f"{self.topology} has no rates: add one, such as 10gbit")
        if reason := why_ineligible(self.strategy, self.topology):
            raise ConfError(f"strategy {self.strategy} on {self.topology}: {reason}")


def why_ineligible(strategy: str, topology: Topology) -> str:
    """Return why a strategy of STRATEGIES cannot be simulated on the topology; empty if it can."""
    if strategy == SERVER:
        alone = topology.rails == topology.ranks_per_host == 1
        return "" if alone else "ps is simulated with one NIC and one rank per host"
    return ALGORITHMS[strategy.removesuffix(DECOUPLED)].why_ineligible(topology)


@dataclass(frozen=True)
class Forecast:
    """Forecast of an iteration.

    :param seconds: seconds of the iteration.
    :param computing: seconds of computing alone.
    :param communication: seconds of communication alone.
    :param doubled: for each rail, seconds of the iteration if that rail were twice as fast.
    :param faster: seconds of the iteration if computing took half as long.
    """

    seconds: float
    computing: float
    communication: float
    doubled: tuple[float, ...]
    faster: float

    @property
    def bottleneck(self) -> str:
        """Computing, or the rail whose doubling gains most."""
        best = min(range(len(self.doubled)), key=self.doubled.__getitem__)
        return "computing" if self.faster <= self.doubled[best] else f"rail {best}"


def forecast(traced: TracedTimings, setting: Setting) -> Forecast:
    """Return the forecast of an iteration whose ranks compute as in ``traced``."""
    topology = setting.topology
    doubled = [
        replace(
            setting,
            topology=topology.with_rates(*(rate * (1 + (other == rail)) for other, rate in enumerate(topology.rates))),
        )
        for rail in range(topology.rails)
    ]
    return Forecast(
        seconds=_seconds(traced, setting),
        computing=_computing_alone(traced, setting),
        communication=_seconds(_computing_times(traced, 0.0), setting),
        doubled=tuple(_seconds(traced, each) for each in doubled),
        faster=_seconds(_computing_times(traced, 0.5), setting),
    )


def _computing_times(traced: TracedTimings, factor: float) -> TracedTimings:
    layers = tuple(replace(one, forward=one.forward * factor, backward=one.backward * factor) for one in traced.layers)
    return replace(traced, layers=layers, update=traced.update * factor, handling=traced.handling * factor)


def _computing_alone(traced: TracedTimings, setting: Setting) -> float:
    """Return the seconds that a rank computes."""
    if setting.strategy.endswith(DECOUPLED):
        return traced.passes + (traced.update + traced.handling) / setting.topology.world
    if setting.strategy != SERVER:
        return traced.passes + traced.update + traced.handling
    batches = len(_batches(traced.pushes, setting.batching, len(traced.layers)))
    return traced.passes + traced.update / setting.topology.world + traced.handling * batches


def _seconds(traced: TracedTimings, setting: Setting) -> float:
    cost = ethernet_cost(setting.topology)
    if setting.strategy.endswith(DECOUPLED):
        algorithm = setting.strategy.removesuffix(DECOUPLED)
        return decoupled_seconds(algorithm, setting.topology, _computing(traced, setting.bucket), cost)
    if setting.strategy != SERVER:
        return step_seconds(setting.strategy, setting.topology, _computing(traced, setting.bucket), cost)
    world = setting.topology.world
    layers = [TimedLayer(one.forward, one.backward, one.nbytes * (world - 1) / world) for one in traced.layers]
    nbytes = sum(layer.nbytes for layer in layers)
    updating = traced.update / world / nbytes if nbytes else 0.0
    server = ServerCost(
        cost.betas[0], traced.server.startup, updating=updating, handling=traced.handling + traced.server.handling
    )
    pulls, pushes = (_batches(each, setting.batching, len(layers)) for each in (traced.pulls, traced.pushes))
    return iteration_seconds(layers, pulls, pushes, server)


def _computing(traced: TracedTimings, bucket: int) -> ComputeTimings:
    """Return the compute times of a rank, with buckets that end where layers end."""

    def gradients() -> Iterator[tuple[float, float]]:
        seconds = 0.0
        for layer in reversed(traced.layers):
            seconds += layer.backward
            yield layer.nbytes, seconds

    forward, backward = (
        sum(getattr(layer, direction) for layer in traced.layers) for direction in ("forward", "backward")
    )
    return ComputeTimings(forward, backward, cut(gradients(), bucket), traced.update + traced.handling)


def _batches(found: Sequence[Batch], batching: str, layers: int) -> Sequence[Batch]:
    if batching in SIMPLE_BATCHINGS:
        return SIMPLE_BATCHINGS[batching](layers)
    return found or SIMPLE_BATCHINGS["whole"](layers)
