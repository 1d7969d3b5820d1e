"""Seconds of a step with default settings: this package with nothing set, beside DDP, Horovod and gloo.

    python python/benchmarks zero --cells star3-resnet50-1.2,hosts1x2-lenet5 --json

A cell is TOPOLOGY-NETWORK-PULL. A shorter one, such as `star3` or `star3-vgg19`, stands for all that begin so.

- The topology is that of an emulated network, without the colon: `star3`, `hosts4x2`. `hosts1x2` is one machine with two
  ranks and no links, so it has no pull.
- The network is emulated, by its profile (see case.py), or it computes: `lenet5`, or `perceptron` of 8 MiB.
- The rate of links follows from PULL: all parameters reach a host in PULL times the seconds of forward. Forward of a
  network that computes is measured before, and multiplied by the ranks per core. Links have at most 10 Gbit/s.

Systems:

- `default`: TorchEstimator with the plugin and nothing set. Its row has the strategy, and the batches that it kept. An
  emulated network has a share of the real one's parameters. So the fit names `ps`, which the real one gets.
- `gloo`: TorchEstimator with this strategy, without the plugin.
- `ddp`: DistributedDataParallel over gloo under TorchDistributor, with its default buckets of 25 MiB. For an emulated
  network they shrink as it does. `ddp-4` and `ddp-1` have buckets of so many MiB.
- `horovod`: its DistributedOptimizer under horovod.spark. If it is not installed, the row of `default` says so.

A fit is one epoch. Rank 0 notes when each step ends. In the first 60 steps ranks connect, and `default` measures, plans and
tries its plan. A sample is the mean of the next `--steps` steps, or of five times as many if the network computes. Theory
is that of ibatch/network.py. `cpu_seconds` of a step are those of all processes: driver, executors and ranks. Memory is the
largest of any rank, and of any executor's JVM. Verified: every rank ends with the weights of one process.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks import batching
from benchmarks.applications import set_rate, submit
from benchmarks.case import Case
from benchmarks.command import Note
from benchmarks.workload import nbytes, network
from benchmarks.zero.job import BUCKETS, DEFAULT, GLOO, HOROVOD, REAL, ROW, Job, model_of
from lab import Lab
from lab.arguments import numbers, positive, topology_of
from lab.bench import Row
from lab.layout import MAX_RATE, MIN_RATE
from lab.spark import SparkCluster

from sparkdl_comm.errors import LabError, SparkdlCommError
from sparkdl_comm.sim.profile import Profile, shipped
from sparkdl_comm.topology import Topology

#: Networks and pulls of cells that name none.
NETWORKS, PULLS = ("resnet50", "vgg19", "bert_base", *REAL), (0.5, 1.2, 2.0)
CELLS = "star3,star8,hosts4x2,hosts1x2,hosts1x4"
QUICK_CELLS = "star3-resnet50-1.2,hosts1x2-lenet5,hosts1x2-perceptron"
#: Steps before the timed ones.
FIRST = 60
#: Rows of a rank in a step, of networks that compute and of emulated ones; steps of a sample for each of `--steps`.
REAL_ROWS, EMULATED_ROWS, REAL_STEPS = 32, 2, 5
_CELL = re.compile(r"([a-z]+)(\d[^-]*)(?:-(\w+)(?:-([\d.]+))?)?")


class Cell(NamedTuple):
    """A cell. ``pull``: seconds of a pull over those of forward. None: a single host."""

    topology: Topology
    network: str
    pull: float | None

    def __str__(self) -> str:
        where = f"{self.network} on {self.topology.text}"
        return where if self.pull is None else f"{where}, a pull {self.pull:g} x forward"


def cells_of(text: str) -> list[Cell]:
    """Parse cells, separated by commas.

    :raises ArgumentTypeError: a cell has another form, or an unknown topology or network.
    """
    found = []
    for each in text.split(","):
        match = _CELL.fullmatch(each)
        if match is None:
            raise ArgumentTypeError(f"{each}: must be TOPOLOGY-NETWORK-PULL, such as star3-vgg19-1.2")
        kind, shape, name, pull = match.groups()
        topology = topology_of(f"{kind}:{shape}")
        is_alone = len(topology.hosts) == 1
        if topology.rails > 1 or (pull and is_alone):
            raise ArgumentTypeError(f"{each}: hosts must have one NIC, and a single host has no pull")
        if name and name not in {*REAL, *shipped()}:
            raise ArgumentTypeError(f"{each}: {name}: there are {', '.join([*REAL, *shipped()])}")
        pulls = [None] if is_alone else numbers(pull) if pull else PULLS
        found += [Cell(topology, *rest) for rest in itertools.product([name] if name else NETWORKS, pulls)]
    return found


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Run all cells, and yield their rows of results. Note which cells failed, and go on.

    :raises LabError: some failed.
    """
    absent = why_no_horovod()
    note(f"{HOROVOD} {absent or 'is installed'}")
    applications = [[*BUCKETS, GLOO], *([] if absent else [[HOROVOD]]), [DEFAULT]]
    failed = []
    for topology, cells in itertools.groupby(options.cells, key=lambda cell: cell.topology):
        executors = topology.world if len(topology.hosts) == 1 else 1  # of a host
        with Lab(topology.with_rates(MAX_RATE)) as lab, lab.spark(memory=f"{executors}g") as spark:
            conf = {"spark.executorEnv.GLOO_SOCKET_IFNAME": lab.layout.node(0).interface(0)}
            if executors > 1:
                conf |= {"spark.executor.cores": "1", "spark.executor.memory": "1g"}
                conf["spark.executor.instances"] = str(executors)
            for cell in cells:
                case, facts = case_of_cell(cell, options.forward)
                note(f"{cell}: {case.rate / 1e6:.1f} Mbit/s")
                set_rate(lab, case.rate)
                for systems in applications:
                    try:
                        about = facts | ({HOROVOD: absent} if absent and systems == [DEFAULT] else {})
                        for job, result in trained(spark, cell, systems, conf, options):
                            yield row_of(cell, case, about, job, result)
                    except SparkdlCommError as error:
                        note(f"{', '.join(systems)} failed: {error}")
                        failed.append(f"{systems[0]}: {cell}")
    if failed:
        raise LabError("; ".join(failed))


def why_no_horovod() -> str:
    """Return why Horovod cannot be used; empty if it can."""
    try:
        import_module("horovod.spark"), import_module("horovod.torch")
    except ImportError as error:
        return f"could not be installed: {error}"
    return ""


def case_of_cell(cell: Cell, forward: float) -> tuple[Case, dict[str, Any]]:
    """Return a cell's case, and facts for its rows. ``forward``: seconds of forward of an emulated network."""
    model, hosts = model_of(cell.network, forward), len(cell.topology.hosts)
    profile = model if isinstance(model, Profile) else None
    if profile is None:
        forward = forward_seconds(cell)
    bits = 8 * nbytes(model) * (hosts - 1) / hosts
    rate = MAX_RATE if cell.pull is None else min(max(bits / cell.pull / forward, MIN_RATE), MAX_RATE)
    case = Case(cell.network, profile, hosts, rate)
    return case, {"pull": cell.pull, "pull_seconds": bits / rate, "forward_seconds": forward, **case.about}


def forward_seconds(cell: Cell) -> float:
    """Return the seconds of forward of a network that computes, as the ranks share the cores."""
    torch.set_num_threads(1)
    module, inputs, samples = network(REAL[cell.network]), ROW.expand(REAL_ROWS, -1), []
    for _ in range(9):
        begun = time.perf_counter()
        module(inputs)
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples) * max(1.0, cell.topology.world / len(os.sched_getaffinity(0)))


def trained(
    spark: SparkCluster, cell: Cell, systems: list[str], conf: dict[str, str], options: Namespace
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Let systems train, in one application. Yield the job with each result.

    :raises LabError: the application failed.
    """
    count, steps = (REAL_ROWS, REAL_STEPS * options.steps) if cell.network in REAL else (EMULATED_ROWS, options.steps)
    counts = cell.topology.world, count, FIRST, steps, options.repeats
    with tempfile.TemporaryDirectory(prefix="sparkdl-zero-") as folder:
        job = Job(systems, cell.network, options.forward, *counts, folder, os.getpid())
        program = Path(__file__).with_name("job.py")
        for result in submit(spark, program, job, options.timeout, conf, has_plugin=systems == [DEFAULT]):
            yield job, result


def row_of(cell: Cell, case: Case, facts: dict[str, Any], job: Job, result: dict[str, Any]) -> Row:
    """Return the row of a result of the application."""
    ranks = result["ranks"]
    ends, plans = ranks[0]["ends"], result.get("batching")
    return Row(
        suite="zero",
        case=cell.network,
        algorithm=result["system"],
        topology=cell.topology.text,
        rate_mbit=None if cell.pull is None else case.rate / 1e6,
        world=job.ranks,
        bytes=nbytes(model_of(cell.network, job.forward)),
        samples=[(end - begin) / job.steps for begin, end in itertools.pairwise(ends[job.first :: job.steps])],
        theory_seconds=facts.get("bound_seconds"),
        verified=all(rank["verified"] for rank in ranks),
        compute="real" if case.profile is None else "emulated",
        extra={
            **facts,
            **({"strategy": result["strategy"]} if "strategy" in result else {}),
            **(batching.record(plans) if plans else {}),
            "first_steps": job.first,
            "first_seconds": ends[job.first] - ends[0],
            "cpu_seconds": ranks[0]["cpu_seconds"] / (job.steps * job.samples),
            "rank_bytes": max(rank["rank_bytes"] for rank in ranks),
            "executor_bytes": max(rank["executor_bytes"] for rank in ranks),
        },
    )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--cells", type=cells_of, help=f"default: {CELLS}; with --quick {QUICK_CELLS}")
    parser.add_argument("--steps", type=positive, default=10, help="steps of a sample")
    parser.add_argument("--forward", type=float, default=0.5, help="seconds of forward of emulated networks")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for an application")
    options = parser.parse_args(words)
    if options.quick:
        options.forward, options.steps = 0.05, 2
    options.cells = options.cells or cells_of(QUICK_CELLS if options.quick else CELLS)
    return options
