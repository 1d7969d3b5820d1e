"""Cells that the lab has measured, simulated: collectives, sums of compressed training, steps of training and iterations with
the parameter server, both with emulated computing.

Races with the fabric, and plain asynchronous ones, stand beside what the benchmark `fabric` has predicted of them.

Cells are rows of results of other pages. What is not known beforehand is fitted to those of FITTED, which are not counted.
What ranks compute in a cell (layers' waits, selecting, adding up) is taken from its row, as it is not what is simulated.
"""

from __future__ import annotations

import itertools
import math
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.fabric.table import RACED
from benchmarks.scale.group_run import hierarchical_top_k
from benchmarks.tables import Data
from lab.bench import Row, versions

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import LOCAL_BETA, Cost
from sparkdl_comm.collectives.plan import Collective
from sparkdl_comm.collectives.select import make_collective
from sparkdl_comm.conf import CommConf
from sparkdl_comm.sim.network import HEADERS, ethernet_cost
from sparkdl_comm.sim.plan_run import simulate
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.sim.server_run import SIMPLE_BATCHINGS, Batch, ServerCost, TimedLayer, iteration_seconds
from sparkdl_comm.sim.step_run import ITEMSIZE, ComputeTimings, decoupled_seconds, step_seconds
from sparkdl_comm.topology import Topology

#: Ways to cut layers into batches that can be simulated: of the last one the row has the plans.
WAYS = (*SIMPLE_BATCHINGS, "ibatch")


def served(row: Row) -> Simulated:
    """What gives the seconds of an iteration of the row."""
    full = Profile.load(row.case)
    forward = math.fsum(layer.forward for layer in full.layers)
    profile = full.scaled(row.extra["scale"], row.extra["forward_seconds"] / forward)
    share = ITEMSIZE * (row.world - 1) / row.world
    layers = [TimedLayer(layer.forward, layer.backward, share * layer.parameters) for layer in profile.layers]
    pulls, pushes = (_batches(row, way, len(layers)) for way in ("pull", "push"))
    beta = HEADERS * 8 / ((row.rate_mbit or 0.0) * 1e6)
    # Start-ups that are slowed down follow one another at each server (SlowStart.scala).
    delay = row.extra["delay"]

    def simulated(parameters: Parameters) -> float:
        startup = parameters.server_startup + delay
        cost = ServerCost(beta, startup, delay, handling=parameters.handling)
        return iteration_seconds(layers, pulls, pushes, cost)

    return simulated


def _batches(row: Row, way: str, layers: int) -> list[Batch]:
    """In the order of the layers."""
    if row.algorithm in SIMPLE_BATCHINGS:
        return SIMPLE_BATCHINGS[row.algorithm](layers)
    return sorted((first - 1, last - 1) for first, last in row.extra["plans"][way])


STARTUPS = (0.0, 2e-5, 5e-5, 1e-4)
LATENCIES = (0.0, 1e-4, 2e-4, 5e-4)
LOCALS = (1e-9, 2e-9, 3e-9, 4e-9)
SERVER_STARTUPS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
HANDLINGS = (0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003)


@dataclass(frozen=True)
class Parameters:
    """``startup``: seconds before each message. ``latency``: seconds until a message that was sent is with its receiver's
    program. ``local``: seconds per byte between processes of a host. ``update``: seconds for a byte of the parameters that
    all ranks of the machine update.

    Of the parameter server: ``server_startup``, seconds from asking for a batch to its first byte; ``handling``, seconds of a
    worker for each batch of gradients, however small.
    """

    startup: float
    latency: float
    local: float = LOCAL_BETA
    update: float = 0.0
    server_startup: float = 0.0
    handling: float = 0.0

    def cost(self, topology: Topology) -> Cost:
        """With the topology's rates, less headers."""
        return ethernet_cost(topology, self.startup, self.local)


Simulated = Callable[[Parameters], float]


@dataclass(frozen=True)
class Known:
    """A cell that parameters are fitted to: ``seconds`` that were measured, ``nbytes`` of all ranks' parameters together."""

    seconds: float
    nbytes: int
    simulated: Simulated


def fitted(known: Mapping[str, Sequence[Known]]) -> Parameters:
    """Of a grid, those with which the mean error is least: start-up and latency of ``collectives``, the local rate of
    ``exchanges``, the start-up of ``server``, the handling of ``batches``; then the update that takes what is missing in
    ``steps``."""
    best = _least(known["collectives"], (Parameters(*pair) for pair in itertools.product(STARTUPS, LATENCIES)))
    best = _least(known["exchanges"], (replace(best, local=local) for local in LOCALS))
    best = _least(known["server"], (replace(best, server_startup=startup) for startup in SERVER_STARTUPS))
    best = _least(known["batches"], (replace(best, handling=seconds) for seconds in HANDLINGS))
    missing = [(cell.seconds - cell.simulated(best)) / cell.nbytes for cell in known["steps"]]
    return replace(best, update=max(0.0, statistics.mean(missing)))


def _least(known: Sequence[Known], candidates: Iterable[Parameters]) -> Parameters:
    def error(parameters: Parameters) -> float:
        return statistics.mean(abs(cell.simulated(parameters) / cell.seconds - 1) for cell in known)

    return min(candidates, key=error)


OPERATIONS = {"allreduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce"}
#: How peers and the package's own rows call algorithms -> the plan that is run for them. gloo and DDP reduce by a ring.
PLANS = {
    **{name: name for name in ("ring", "bml", "lp", "be", "torus2d", "p2p-ps", "hierarchical", "tree")},
    "gloo": "ring",
    "ddp": "ring",
    "tree-ar": "tree",
}
COLLECTIVES = (
    "collectives-star",
    "collectives-bcube-3-2",
    "collectives-bcube-2-3",
    "collectives-bcube-2x3",
    "lp-2",
    "lp-9",
    "fig5-bcube",
    "fig5-fattree",
)
EXCHANGES = ("compress-0.01", "compress-0.001")
STEPS = ("jobs-lenet5", "jobs-vgg19", "compress-resnet50", "compress-resnet50-96", "compress-vgg19")
#: Steps in which the halves of an all-reduce are apart, or not, in buckets of so many bytes.
LOOPS, LOOP_BUCKET = ("jobs-loops-star", "jobs-loops-bcube"), 512 << 10
SERVER = ("ibatch-networks", "ibatch-delays")
#: (file, case, algorithm, bytes, or rows of a rank, or seconds added to a start-up): what parameters are fitted to.
FITTED = {
    ("collectives-star", "allreduce", "ring", 4 << 20),
    ("collectives-bcube-3-2", "allreduce", "bml", 16 << 20),
    ("lp-9", "broadcast", "lp", 16 << 20),
    ("compress-0.01", "exchange", "hitopk", 100_000_000),
    ("jobs-lenet5", "lenet5", "bml", 128),
    ("compress-vgg19", "vgg19", "torus2d", 128),
    ("ibatch-delays", "vgg19", "whole", 0.0),
    ("ibatch-delays", "vgg19", "layerwise", 0.0),
    ("ibatch-networks", "googlenet", "layerwise", 0.0),
}
#: Bytes of torch's first bucket, and of the others.
DDP_FIRST, DDP_BUCKET = 1 << 20, 25 << 20


@dataclass(frozen=True)
class Cell:
    """``simulated``: its seconds with some parameters."""

    suite: str
    source: str
    row: Row
    simulated: Simulated

    @property
    def is_fitted(self) -> bool:
        row = self.row
        size = {"steps": row.extra.get("rows"), "server": row.extra.get("delay")}.get(self.suite, row.bytes)
        return (self.source, row.case, row.algorithm, size) in FITTED


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--validate", action="store_true", help="cells that the lab has measured")


def rows(options: Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    """A row for each cell; notes the parameters, and the errors of what was not fitted."""
    parameters = fitted_parameters()
    note(f"fitted: {parameters}")
    errors: dict[str, list[float]] = {}
    for cell in cells()[:: 6 if options.quick else 1]:
        row = _row(cell, parameters)
        if not cell.is_fitted:
            errors.setdefault(cell.suite, []).append(abs(row.extra["error"]))
        yield row
    for suite, found in {**errors, "all": sum(errors.values(), [])}.items():
        note(told(suite, found))


def told(suite: str, errors: Sequence[float]) -> str:
    median, worst = statistics.median(errors), max(errors)
    return f"{suite}: {len(errors)} cells, error median {median:.1%}, worst {worst:.1%}"


def fitted_parameters() -> Parameters:
    """By the cells of FITTED."""
    known: dict[str, list[Known]] = {}
    for cell in cells():
        row = cell.row
        if cell.is_fitted:
            part = "batches" if cell.source == "ibatch-networks" else cell.suite
            known.setdefault(part, []).append(Known(row.seconds, row.world * row.bytes, cell.simulated))
    return fitted(known)


def cells() -> list[Cell]:
    """All that there are."""
    return [*_collectives(), *_exchanges(), *_steps(), *_loops(), *_server(), *_fabric()]


def _row(cell: Cell, parameters: Parameters) -> Row:
    measured, simulated = cell.row, cell.simulated(parameters)
    return Row(
        suite="sim",
        case=cell.suite,
        algorithm=measured.algorithm,
        topology=measured.topology,
        rate_mbit=measured.rate_mbit,
        world=measured.world,
        bytes=measured.bytes,
        samples=[simulated],
        theory_seconds=measured.theory_seconds,
        verified=simulated >= (measured.theory_seconds or 0.0),
        compute="emulated",
        versions=versions("numpy"),
        extra={
            "source": cell.source,
            "what": measured.case,
            "measured": measured.seconds,
            "measured_spread": measured.spread,
            "error": simulated / measured.seconds - 1,
            "fitted": cell.is_fitted,
            "parameters": asdict(parameters),
            "delay": measured.extra.get("delay"),
            "rows": measured.extra.get("rows"),
        },
    )


def _collectives() -> Iterator[Cell]:
    for source in COLLECTIVES:
        for row in _read(source):
            if row.algorithm in PLANS and not (row.algorithm == "gloo" and row.case != "allreduce"):
                topology = _topology(row)
                block = max(1, row.extra.get("block", 0) // ITEMSIZE)
                collective = Collective(OPERATIONS[row.case], topology, row.bytes // ITEMSIZE, block=block)
                simulated = collective_seconds(PLANS[row.algorithm], collective, row.extra["calls"])
                yield Cell("collectives", source, row, simulated)


def collective_seconds(name: str, collective: Collective, calls: int) -> Simulated:
    """Of one of so many calls."""
    plan = make_plan(name, collective)

    def simulated(parameters: Parameters) -> float:
        cost = parameters.cost(collective.topology)
        return simulate(plan, cost, latency=parameters.latency, calls=calls).seconds / calls

    return simulated


def _exchanges() -> Iterator[Cell]:
    for source in EXCHANGES:
        for row in _read(source):
            topology = _topology(row)
            if row.algorithm == "hitopk":
                yield Cell("exchanges", source, row, _hitopk(row, topology))
            elif row.algorithm in PLANS:
                yield Cell("exchanges", source, row, _dense(PLANS[row.algorithm], topology, row.bytes // ITEMSIZE))


def _dense(name: str, topology: Topology, count: int) -> Simulated:
    def simulated(parameters: Parameters) -> float:
        cost = parameters.cost(topology)
        plan = make_plan(name, make_collective(name, "all_reduce", topology, count, ITEMSIZE, cost))
        return simulate(plan, cost, latency=parameters.latency).seconds

    return simulated


def _hitopk(row: Row, topology: Topology) -> Simulated:
    def simulated(parameters: Parameters) -> float:
        return hierarchical_top_k(
            topology,
            row.extra["count"],
            row.extra["density"],
            parameters.cost(topology),
            latency=parameters.latency,
            selecting=row.extra["select_seconds"],
            adding=row.extra["add_seconds"],
        )

    return simulated


def _steps() -> Iterator[Cell]:
    for source in STEPS:
        for row in _read(source):
            if row.algorithm in PLANS:
                yield Cell("steps", source, row, _step(row, _topology(row)))


def _loops() -> Iterator[Cell]:
    for source in LOOPS:
        for row in _read(source):
            if row.algorithm != "ddp":
                about = f"{row.case} {row.extra['loop']}, exchange {row.extra['exchange']:g} x backward"
                told = replace(row, case=about, theory_seconds=row.extra["computing"])
                yield Cell("loops", source, told, _step(row, _topology(row), LOOP_BUCKET))


def _step(row: Row, topology: Topology, bucket: int = 0) -> Simulated:
    """``bucket``: bytes of those of gradients; 0: what the system has."""
    share = 1 / row.extra["shrink"]
    profile = Profile.load(row.case).scaled(share, share)
    scale = row.extra["computing"] / profile.seconds
    ddp = row.algorithm == "ddp"
    bucket = bucket or (DDP_BUCKET if ddp else CommConf.from_mapping({}).collective.bucket)
    taken = decoupled_seconds if row.extra.get("loop") == "decoupled" else step_seconds

    def simulated(parameters: Parameters) -> float:
        update = parameters.update * row.world * row.bytes
        computing = ComputeTimings.of(profile, scale, bucket, update, DDP_FIRST if ddp else None)
        cost = parameters.cost(topology)
        return taken(PLANS[row.algorithm], topology, computing, cost, latency=parameters.latency)

    return simulated


def _server() -> Iterator[Cell]:
    for source in SERVER:
        for row in _read(source):
            if row.algorithm in WAYS:
                yield Cell("server", source, row, served(row))


def _fabric() -> Iterator[Cell]:
    """Races over a number of updates, whose predictions are results themselves."""
    predicted = {(row.case, row.algorithm.removesuffix("-30")): row.seconds for row in _read("fabric-predicted")}
    for setting in RACED:
        source = f"fabric-trained-{setting}-server"
        for row in _read(source):
            seconds = predicted[setting, row.algorithm]
            ends = [curve[-1][0] for curve in row.extra["curves"]]
            yield Cell("fabric", source, replace(row, samples=ends), lambda parameters, seconds=seconds: seconds)


def _read(source: str) -> list[Row]:
    """None if it was never measured."""
    return Data().rows(source)


def _topology(row: Row) -> Topology:
    return Topology.parse(row.topology).with_rates(round((row.rate_mbit or 0) * 1e6))
