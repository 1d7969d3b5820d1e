"""Cells that the lab has measured, simulated.

Cells are rows of other pages' results: collectives, sums of compressed training, steps of training, and iterations with
the parameter server, with emulated computing. Races of the fabric and plain asynchronous ones stand beside the
predictions of the benchmark `fabric`. The computing of ranks (layers' waits, selecting, adding up) is the cell's own.
Other parameters are fitted to the cells of FITTED, which are not counted.
"""

from __future__ import annotations

import itertools
import statistics
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.case import passes
from benchmarks.fabric.table import RACED
from benchmarks.scale.group_run import hierarchical_top_k
from benchmarks.tables import Data
from lab.bench import Row

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import LOCAL_BETA, Cost, make_collective
from sparkdl_comm.collectives.plan import Collective
from sparkdl_comm.conf import CommConf
from sparkdl_comm.sim.network import HEADERS, ethernet_cost
from sparkdl_comm.sim.plan_run import simulate
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.sim.server_run import SIMPLE_BATCHINGS, ServerCost, TimedLayer, iteration_seconds
from sparkdl_comm.sim.step_run import ITEMSIZE, ComputeTimings, decoupled_seconds, step_seconds
from sparkdl_comm.topology import Topology


@dataclass(frozen=True)
class Parameters:
    """Fitted parameters of the simulator.

    - ``startup``: seconds before each message. ``latency``: seconds until a sent message reaches its receiver's program.
    - ``local``: seconds per byte between processes of a host.
    - ``update``: seconds per byte of the parameters that all ranks of the machine update.
    - ``server_startup``: seconds from the request of a batch to its first byte, of the parameter server.
    - ``handling``: a worker's seconds for each batch of gradients, of the parameter server.
    """

    startup: float = 0.0
    latency: float = 0.0
    local: float = LOCAL_BETA
    update: float = 0.0
    server_startup: float = 0.0
    handling: float = 0.0

    def cost(self, topology: Topology) -> Cost:
        """Return the cost model with the topology's rates, less headers."""
        return ethernet_cost(topology, self.startup, self.local)


#: Grids of parameters, and the cells that they are fitted to, one after another.
GRIDS: tuple[tuple[str, dict[str, tuple[float, ...]]], ...] = (
    ("collectives", {"startup": (0.0, 2e-5, 5e-5, 1e-4), "latency": (0.0, 1e-4, 2e-4, 5e-4)}),
    ("exchanges", {"local": (1e-9, 2e-9, 3e-9, 4e-9)}),
    ("server", {"server_startup": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)}),
    ("batches", {"handling": (0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003)}),
)
#: Cells that parameters are fitted to: file, case, algorithm, and bytes, rows of a rank or added seconds of a start-up.
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
#: Algorithm of a row -> its plan. gloo and DDP reduce by a ring.
PLANS = {
    **{name: name for name in ("ring", "bml", "lp", "be", "torus2d", "p2p-ps", "hierarchical", "tree")},
    "gloo": "ring",
    "ddp": "ring",
    "tree-ar": "tree",
}
OPERATIONS = {"allreduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce"}
#: Bytes of a bucket of the loops' cells, of torch's first bucket, and of its others.
LOOP_BUCKET, DDP_FIRST, DDP_BUCKET = 512 << 10, 1 << 20, 25 << 20

#: Simulated seconds with some parameters.
Simulated = Callable[[Parameters], float]


@dataclass(frozen=True)
class Cell:
    """Measured row of the file ``source``, and its simulation."""

    suite: str
    source: str
    row: Row
    simulated: Simulated

    @property
    def is_fitted(self) -> bool:
        row = self.row
        size = {"steps": row.extra.get("rows"), "server": row.extra.get("delay")}.get(self.suite, row.bytes)
        return (self.source, row.case, row.algorithm, size) in FITTED

    def error(self, parameters: Parameters) -> float:
        """Return the relative error of the simulated seconds."""
        return self.simulated(parameters) / self.row.seconds - 1


def rows(options: Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    """Simulate the measured cells, and yield a row of results for each. Note the fitted parameters, and the errors of
    the cells that were not fitted.
    """
    parameters = fitted_parameters()
    note(f"fitted: {parameters}")
    errors: dict[str, list[float]] = defaultdict(list)
    for cell in cells()[:: 6 if options.quick else 1]:
        row = _row(cell, parameters)
        if not cell.is_fitted:
            errors[cell.suite].append(abs(row.extra["error"]))
        yield row
    for suite, found in {**errors, "all": sum(errors.values(), [])}.items():
        note(errors_text(suite, found))


def errors_text(suite: str, errors: Sequence[float]) -> str:
    median, worst = statistics.median(errors), max(errors)
    return f"{suite}: {len(errors)} cells, error median {median:.1%}, worst {worst:.1%}"


def fitted_parameters() -> Parameters:
    """Return the parameters of the grids with the least mean error, and the update that explains the steps' rest."""
    parts: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells():
        if cell.is_fitted:
            parts["batches" if cell.source == "ibatch-networks" else cell.suite].append(cell)
    best = Parameters()
    for part, grid in GRIDS:
        known = parts[part]
        choices = [
            replace(best, **dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())
        ]
        best = min(choices, key=lambda choice, known=known: statistics.mean(abs(cell.error(choice)) for cell in known))
    steps = [(cell.row.seconds - cell.simulated(best)) / (cell.row.world * cell.row.bytes) for cell in parts["steps"]]
    return replace(best, update=max(0.0, statistics.mean(steps)))


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
        extra={
            "source": cell.source,
            "what": measured.case,
            "measured": measured.seconds,
            "error": simulated / measured.seconds - 1,
            "fitted": cell.is_fitted,
            "parameters": asdict(parameters),
            "delay": measured.extra.get("delay"),
            "rows": measured.extra.get("rows"),
        },
    )


def cells() -> list[Cell]:
    """Return all cells that can be simulated."""
    return [
        Cell(suite, source, *made)
        for suite, (sources, make) in SUITES.items()
        for source in sources
        for row in Data().rows(source)
        if (made := make(row))
    ]


def _collective(row: Row) -> tuple[Row, Simulated] | None:
    if row.algorithm not in PLANS or (row.algorithm == "gloo" and row.case != "allreduce"):
        return None
    block = max(1, row.extra.get("block", 0) // ITEMSIZE)
    collective = Collective(OPERATIONS[row.case], _topology(row), row.bytes // ITEMSIZE, block=block)
    return row, collective_seconds(PLANS[row.algorithm], collective, row.extra["calls"])


def collective_seconds(name: str, collective: Collective, calls: int) -> Simulated:
    """Return the simulation of one of several calls."""
    plan = make_plan(name, collective)

    def simulated(parameters: Parameters) -> float:
        cost = parameters.cost(collective.topology)
        return simulate(plan, cost, latency=parameters.latency, calls=calls).seconds / calls

    return simulated


def _exchange(row: Row) -> tuple[Row, Simulated] | None:
    topology = _topology(row)

    def dense(parameters: Parameters) -> float:
        name, cost = PLANS[row.algorithm], parameters.cost(topology)
        plan = make_plan(name, make_collective(name, "all_reduce", topology, row.bytes // ITEMSIZE, ITEMSIZE, cost))
        return simulate(plan, cost, latency=parameters.latency).seconds

    def hitopk(parameters: Parameters) -> float:
        return hierarchical_top_k(
            topology,
            row.extra["count"],
            row.extra["density"],
            parameters.cost(topology),
            latency=parameters.latency,
            selecting=row.extra["select_seconds"],
            adding=row.extra["add_seconds"],
        )

    if row.algorithm == "hitopk":
        return row, hitopk
    return (row, dense) if row.algorithm in PLANS else None


def _step(row: Row) -> tuple[Row, Simulated] | None:
    return (row, _step_simulation(row)) if row.algorithm in PLANS else None


def _loop(row: Row) -> tuple[Row, Simulated] | None:
    if row.algorithm == "ddp":
        return None
    case = f"{row.case} {row.extra['loop']}, exchange {row.extra['exchange']:g} x backward"
    return replace(row, case=case, theory_seconds=row.extra["computing"]), _step_simulation(row, LOOP_BUCKET)


def _step_simulation(row: Row, bucket: int = 0) -> Simulated:
    """Return the simulation of a step. ``bucket``: bytes of a bucket of gradients; 0: the system's default."""
    topology, share, is_ddp = _topology(row), 1 / row.extra["shrink"], row.algorithm == "ddp"
    profile = Profile.load(row.case).scaled(share, share)
    bucket = bucket or (DDP_BUCKET if is_ddp else CommConf.from_mapping({}).collective.bucket)
    run = decoupled_seconds if row.extra.get("loop") == "decoupled" else step_seconds

    def simulated(parameters: Parameters) -> float:
        update = parameters.update * row.world * row.bytes
        scale = row.extra["computing"] / profile.seconds
        computing = ComputeTimings.of(profile, scale, bucket, update, DDP_FIRST if is_ddp else None)
        return run(PLANS[row.algorithm], topology, computing, parameters.cost(topology), latency=parameters.latency)

    return simulated


def _served(row: Row) -> tuple[Row, Simulated] | None:
    if row.algorithm not in (*SIMPLE_BATCHINGS, "ibatch"):
        return None
    full = Profile.load(row.case)
    profile = full.scaled(row.extra["scale"], row.extra["forward_seconds"] / passes(full)[0])
    share = ITEMSIZE * (row.world - 1) / row.world
    layers = [TimedLayer(layer.forward, layer.backward, share * layer.parameters) for layer in profile.layers]
    if row.algorithm in SIMPLE_BATCHINGS:
        pulls = pushes = SIMPLE_BATCHINGS[row.algorithm](len(layers))
    else:
        plans = row.extra["plans"]
        pulls, pushes = (sorted((first - 1, last - 1) for first, last in plans[way]) for way in ("pull", "push"))
    beta = HEADERS * 8 / ((row.rate_mbit or 0.0) * 1e6)
    # Start-ups that are slowed down follow one another at each server (SlowStart.scala).
    delay = row.extra["delay"]

    def simulated(parameters: Parameters) -> float:
        cost = ServerCost(beta, parameters.server_startup + delay, delay, handling=parameters.handling)
        return iteration_seconds(layers, pulls, pushes, cost)

    return row, simulated


def _race(row: Row) -> tuple[Row, Simulated] | None:
    setting = row.case.removeprefix("train ")
    [predicted] = [
        each.seconds
        for each in Data().rows("fabric-predicted", case=setting)
        if each.algorithm.removesuffix("-30") == row.algorithm
    ]
    return replace(row, samples=[curve[-1][0] for curve in row.extra["curves"]]), lambda parameters: predicted


def _topology(row: Row) -> Topology:
    return Topology.parse(row.topology).with_rates(round((row.rate_mbit or 0) * 1e6))


#: Suite -> files of its rows, and the simulation of a row, with the row as it is compared; None: cannot be simulated.
SUITES: dict[str, tuple[Sequence[str], Callable[[Row], tuple[Row, Simulated] | None]]] = {
    "collectives": (
        (
            *("collectives-star", "collectives-bcube-3-2", "collectives-bcube-2-3", "collectives-bcube-2x3"),
            *("lp-2", "lp-9", "fig5-bcube", "fig5-fattree"),
        ),
        _collective,
    ),
    "exchanges": (("compress-0.01", "compress-0.001"), _exchange),
    "steps": (("jobs-lenet5", "jobs-vgg19", "compress-resnet50", "compress-resnet50-96", "compress-vgg19"), _step),
    "loops": (("jobs-loops-star", "jobs-loops-bcube"), _loop),
    "server": (("ibatch-networks", "ibatch-delays"), _served),
    "fabric": ([f"fabric-trained-{setting}-server" for setting in RACED], _race),
}
