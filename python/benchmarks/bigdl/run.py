"""Seconds of an iteration of BigDL models: BigDL's DistriOptimizer beside this package's IBatchOptimizer.

    python python/benchmarks bigdl --executors 2 --networks lenet,vgg --json FILE

All systems run on the same executors: one core each in local-cluster, or the hosts of an emulated network with
`--topology star:8`. `--executors 1,2,4,8` measures each of these numbers. Systems are `bigdl`, without its compression,
and the policies of `spark.sparkdl.comm.ps.batching`: `ibatch`, `layerwise`, `whole`. They train LeNet-5 (22,278
parameters) or a network like VGG (1.34 million) with SGD, or networks with emulated computing:

    python python/benchmarks bigdl --topology star:8 --networks vgg19 --rate auto:1 --systems bigdl,ibatch --json

Emulated layers wait. Each layer has the same share of its parameters and times, so that forward takes `--forward`
seconds on a slow device (see case.py). With `auto:1` a
pull on all hosts takes as long as forward. Small blocks come with their notice, without a start-up. With `--delay` all
blocks are requested, and each start-up takes that many ms more (SlowStart.scala). DistriOptimizer's start-ups do not
change.

All rows of the data are one batch. The time of an iteration is wall time, from the difference between a long run and a
short one. It includes the work of BigDL's driver between its two Spark jobs per iteration. It excludes set-up, the end,
and the iterations in which `ibatch` measures, plans and tries its plan. `overlap` has the seconds in which ranks of
IBatchOptimizer compute while data arrive (`overlapped`), and those in which they do only one of the two. The theory of
emulated networks is in ibatch/network.py.

A sample is the difference of two runs, so chance may bring it below theory. Tables refuse a row with such a sample.

Verified: after the same iterations on the same rows all systems have the same weights, up to rounding. `make bigdl`
installs BigDL, and `make bigdl-jar` builds this package's adapter.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import applications, batching
from benchmarks.applications import answer, bench_jar, local_cluster, python_path, set_rate, submit
from benchmarks.bigdl.table import too_short
from benchmarks.case import Case, case_of, share_of
from benchmarks.command import Note
from lab import Lab
from lab.arguments import names_of, positive, topology_of, whole_numbers
from lab.bench import Row, measure, versions
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkdl_comm.bigdl import installation
from sparkdl_comm.bigdl.installation import start_engine
from sparkdl_comm.errors import LabUnavailableError, PluginError
from sparkdl_comm.networks import digits_28x28
from sparkdl_comm.sim.profile import PROFILES

#: BigDL's own optimizer. The other systems are ``IBatchOptimizer`` with a policy of ``spark.sparkdl.comm.ps.batching``.
BIGDL = "bigdl"
LEARNING_RATE = 0.05
#: Largest difference to the first system's weights, as a share of the largest change of these in training.
TOLERANCE = 1e-3
PROFILE_ITERATIONS = 5
#: Iterations before weights are compared. Differences by rounding grow with the iterations.
COMPARED = 12
#: Iterations of the short run, after which ``ibatch`` is settled. It measures a profile and tries the plan, ``layerwise``
#: and, where blocks are small, ``whole``. Pulls change one iteration later, pushes two.
SHORT = 4 * PROFILE_ITERATIONS + 3


@dataclass(frozen=True)
class Job:
    """Job of the application.

    :param network: a name in ``sparkdl_comm.bigdl.networks``, or of an emulated network's profile.
    :param forward: seconds of forward of an emulated network, whose layers wait. None: the network computes.
    :param rows: rows of each executor in an iteration.
    :param iterations: iterations that a long run has more than a short one. None: as many as take about ``seconds``.
    """

    network: str
    forward: float | None
    systems: Sequence[str]
    executors: int
    rows: int
    iterations: int | None
    seconds: float
    repeats: int


@dataclass(frozen=True)
class Training:
    """A run: its seconds, its final weights, and the optimizer's summary, which is empty for BigDL's own."""

    iterations: int
    seconds: float
    weights: list[np.ndarray]
    summary: dict[str, Any]

    def overlap_since(self, short: Training) -> dict[str, float]:
        """Return the summary's mean overlap per iteration, over the iterations that ``short`` did not do."""

        def total(of: Training, name: str) -> float:
            return float(of.summary["overlap"][name]) * of.iterations

        more = self.iterations - short.iterations
        return {name: (total(self, name) - total(short, name)) / more for name in self.summary.get("overlap", {})}


@dataclass(frozen=True)
class Sample:
    """Seconds of an iteration, and of its overlapping parts."""

    seconds: float
    overlap: dict[str, float]
    batching: dict[str, Any]


def measured(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    """Return a row for each system.

    - ``samples``: seconds of an iteration. ``overlap``: medians of this field of ``IBatchOptimizer.summary``.
    - ``verified``: the final weights are those of the first system. ``apart``: their relative difference.
    - ``runs``: of each sample's long run, its batches of layers (see batching.py). ``parameters``: their number.
    """
    sc = spark.sparkContext
    sc.setLogLevel("ERROR")
    start_engine(sc, job.executors, 1)
    runs = {system: _Runs(sc, job, system) for system in job.systems}
    start = _weights(_network(job))
    ends = {system: run.train(start, COMPARED).weights for system, run in runs.items()}
    first = ends[job.systems[0]]
    gone = max(np.abs(end - begin).max() for end, begin in zip(first, start, strict=True))
    samples = measure(
        {system: functools.partial(run.sample, start, run.length(start)) for system, run in runs.items()},
        warmup=0,
        repeats=job.repeats,
    )
    rows = []
    for system, found in samples.items():
        apart = max(np.abs(one - other).max() for one, other in zip(ends[system], first, strict=True))
        row = {"network": job.network, "system": system, "executors": job.executors, "apart": float(apart / gone)}
        row |= {"verified": bool(gone > 0 and apart <= TOLERANCE * gone)}
        row |= {"parameters": sum(array.size for array in start), "samples": [each.seconds for each in found]}
        row |= {"overlap": {name: statistics.median(each.overlap[name] for each in found) for name in found[0].overlap}}
        row |= {"runs": [batching.record(each.batching) for each in found if each.batching]}
        rows.append(row)
    return rows


def _network(job: Job) -> Any:
    from sparkdl_comm.bigdl.networks import NETWORKS, emulated

    return NETWORKS[job.network]() if job.forward is None else emulated(share_of(job.network, job.forward))


def _weights(network: Any) -> list[np.ndarray]:
    return [array.copy() for array in network.get_weights()]


class _Runs:
    def __init__(self, sc: SparkContext, job: Job, system: str) -> None:
        self._sc, self._job, self._system = sc, job, system

    def length(self, start: list[np.ndarray]) -> int:
        """Return the iterations that a long run has more than a short one."""
        if self._job.iterations:
            return self._job.iterations
        rough = self.sample(start, SHORT).seconds
        return max(SHORT, round(self._job.seconds / max(rough, 1e-4)))

    def sample(self, start: list[np.ndarray], more: int) -> Sample:
        long, short = self.train(start, SHORT + more), self.train(start, SHORT)
        seconds = (long.seconds - short.seconds) / more
        plans = long.summary.get("batching", {})
        return Sample(seconds, long.overlap_since(short), plans)

    def train(self, start: list[np.ndarray], iterations: int) -> Training:
        """Train from the weights ``start``."""
        optimizer = self._optimizer(start, iterations)
        begun = time.perf_counter()
        trained = optimizer.optimize()
        seconds = time.perf_counter() - begun
        summary = {} if self._system == BIGDL else optimizer.summary
        return Training(iterations, seconds, _weights(trained), summary)

    def _optimizer(self, start: list[np.ndarray], iterations: int) -> Any:
        from bigdl.dllib.nn.criterion import ClassNLLCriterion
        from bigdl.dllib.optim.optimizer import SGD, DistriOptimizer, MaxIteration
        from bigdl.dllib.utils.common import Sample as Row

        from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

        model = _network(self._job)
        model.set_weights(start)
        count = self._job.rows * self._job.executors
        pixels, labels = digits_28x28()
        rows = [
            Row.from_ndarray(pixel, np.array(label + 1.0))
            for pixel, label in zip(pixels[:count].numpy(), labels[:count].numpy(), strict=True)
        ]
        # BigDL deals out the rows of one partition, so each executor gets the same number.
        data = self._sc.parallelize(rows, 1)
        make = DistriOptimizer if self._system == BIGDL else IBatchOptimizer
        optimizer = make(
            model, data, ClassNLLCriterion(), MaxIteration(iterations), count, SGD(learningrate=LEARNING_RATE)
        )
        if self._system == BIGDL:
            optimizer.value.setCompressType("none")
        else:
            optimizer.set_conf("spark.sparkdl.comm.ps.batching", self._system)
            optimizer.set_conf("spark.sparkdl.comm.ps.profileIterations", str(PROFILE_ITERATIONS))
        optimizer.prepare_input()
        return optimizer


_REAL = ("lenet", "vgg")
_NETWORKS = (*_REAL, *sorted(path.stem for path in PROFILES.glob("*.json")))
_SYSTEMS = (BIGDL, "whole", "layerwise", "ibatch")
#: MiB of an executor on this machine, and rows of each executor in an iteration.
_EXECUTOR_MIB, _ROWS = 2048, 16


def _row(found: dict[str, Any], case: Case, topology: str) -> Row:
    about = case.about
    return Row(
        suite="bigdl",
        case=case.name,
        algorithm=found["system"],
        topology=topology,
        rate_mbit=None if topology == "loopback" else case.rate / 1e6,
        world=case.world,
        bytes=4 * found["parameters"],
        samples=found["samples"],
        theory_seconds=about.get("bound_seconds"),
        verified=found["verified"],
        compute="emulated" if about else "real",
        versions=versions() | {"bigdl": "2.4.0"},
        extra={
            "apart": found["apart"],
            "runs": found["runs"],
            "overlap": found["overlap"],
            "delay": case.delay,
        },
    )


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Train with all systems. Yield a row of results for each system, network and number of executors.

    :raises ConfError: the rate is invalid. LabError: the application failed.
    """
    sys.path.insert(0, str(applications.BIGDL))
    try:
        conf = installation.spark_conf()
    except PluginError as reason:
        raise LabUnavailableError(str(reason)) from reason
    for row in (_on_a_lab if options.topology else _on_this_machine)(options, conf):
        if remark := too_short(row):
            note(f"{row.case} {row.algorithm}: {remark}. Tables refuse such a row. Give more --iterations.")
        yield row


def _on_this_machine(options: Namespace, conf: dict[str, str]) -> Iterator[Row]:
    conf = conf | {"spark.executorEnv.PYTHONPATH": python_path(applications.BIGDL)}
    for executors in options.executors or [2]:
        spark = local_cluster("bench_bigdl", executors, _EXECUTOR_MIB, conf)
        for network in options.networks:
            case = _case(network, executors, "inf", options)
            for found in measured(spark, _job(case, options)):
                yield _row(found, case, "loopback")
        spark.stop()


def _on_a_lab(options: Namespace, conf: dict[str, str]) -> Iterator[Row]:
    topology = options.topology
    cases = [_case(network, topology.world, options.rate, options) for network in options.networks]
    environment = {"PYTHONPATH": python_path(applications.BIGDL)}
    with (
        Lab(topology.with_rates(round(cases[0].rate))) as lab,
        lab.spark(memory="1g", env=environment) as spark,
    ):
        for whole in cases:
            set_rate(lab, whole.rate)
            for executors in options.executors or [topology.world]:
                case = Case(whole.name, whole.profile, executors, whole.rate, whole.delay)
                some = _slow(conf, whole.delay)
                some |= {"spark.cores.max": str(executors), "spark.executor.instances": str(executors)}
                job = _job(case, options)
                timeout = options.timeout or 120 + 60 * executors  # they all start and compile on the same cores
                for found in submit(spark, Path(__file__), job, timeout, some):
                    yield _row(found, case, topology.text)


def _case(network: str, world: int, rate: str, options: Namespace) -> Case:
    return case_of(network, None if network in _REAL else options.forward, world, rate, options.delay / 1e3)


def _slow(conf: dict[str, str], delay: float) -> dict[str, str]:
    """Return Spark's conf with ``delay`` seconds more per start-up of a communication."""
    path, java = "spark.executor.extraClassPath", "spark.executor.extraJavaOptions"
    if not delay:
        return conf
    return conf | {
        path: f"{conf[path]}{os.pathsep}{bench_jar()}",
        java: f"{conf[java]} -Dlab.sparkdl.startupSeconds={delay}",
    }


def _job(case: Case, options: Namespace) -> Job:
    forward = None if case.profile is None else options.forward
    counts = _ROWS, options.iterations, options.seconds, options.repeats
    return Job(case.name, forward, options.systems, case.world, *counts)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--executors", type=whole_numbers(), help="numbers of executors (default: 2, or all hosts)")
    parser.add_argument("--networks", type=names_of(_NETWORKS), default=",".join(_REAL))
    parser.add_argument("--systems", type=names_of(_SYSTEMS), default=f"{BIGDL},ibatch")
    parser.add_argument("--iterations", type=positive, help="iterations of a long run (default: see --seconds)")
    parser.add_argument("--seconds", type=float, default=8.0, help="approximate time of a long run's iterations")
    parser.add_argument("--forward", type=float, default=0.25, help="seconds of forward in emulated networks")
    parser.add_argument("--topology", type=topology_of, help="run on an emulated network: star:N")
    parser.add_argument("--rate", default="200", help="Mbit/s of each of its links, or auto:R")
    parser.add_argument("--delay", type=float, default=0.0, help="ms added to each start-up there")
    parser.add_argument(
        "--timeout", type=float, help="seconds for an application there (default: 120, and 60 per executor)"
    )
    options = parser.parse_args(words)
    if options.quick:
        options.iterations, options.forward = options.iterations or 60, 0.02
    if options.delay and not options.topology:
        parser.error("--delay works only with --topology. Add --topology, or drop --delay.")
    return options


if __name__ == "__main__":
    answer("bench_bigdl", Job, measured)
