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

The time of an iteration is wall time, from the difference between a long run and a short one. It includes the work of
BigDL's driver between its two Spark jobs per iteration. `overlap` has the seconds in which ranks of IBatchOptimizer
compute while data arrive (`overlapped`), and those in which they do only one of the two. The theory of emulated
networks is in ibatch/network.py.

Verified: after the same iterations on the same rows all systems have the same weights, up to rounding. `make bigdl`
installs BigDL, and `make bigdl-jar` builds this package's adapter.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import applications
from benchmarks.applications import bench_jar, local_cluster, python_path, set_rate, submit
from benchmarks.bigdl.job import BIGDL, Job, measured
from benchmarks.case import Case, case_of
from benchmarks.command import Note
from lab import Lab
from lab.arguments import names_of, positive, topology_of, whole_numbers
from lab.bench import Row, versions

from sparkdl_comm.bigdl import installation
from sparkdl_comm.errors import LabUnavailableError, PluginError
from sparkdl_comm.sim.profile import PROFILES

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
            "batches": found["batches"],
            "kept": found["kept"],
            "phases": found["phases"],
            "overlap": found["overlap"],
            "pull_seconds": about.get("pull_seconds"),
            "delay": case.delay,
        },
    )


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Yield rows of all systems, for each network and number of executors.

    :raises ConfError: the rate is invalid. LabError: the application failed.
    """
    sys.path.insert(0, str(applications.BIGDL))
    try:
        conf = installation.spark_conf()
    except PluginError as reason:
        raise LabUnavailableError(str(reason)) from reason
    yield from (_on_a_lab if options.topology else _on_this_machine)(options, conf)


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
                for found in submit(spark, Path(__file__).with_name("job.py"), job, timeout, some):
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
