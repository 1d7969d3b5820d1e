"""Iterations per second of BigDL models: BigDL's DistriOptimizer beside this package's IBatchOptimizer, on the same executors.

    python python/bench_bigdl.py --executors 2 --networks lenet,vgg --json FILE

local-cluster, one core each; with `--topology star:4 --rate 200`, executors on the hosts of an emulated network. Both train
LeNet-5 (22,278 parameters) or a network like VGG (1.34 million) with SGD; `bigdl` without its compression. The time of an
iteration is wall time: what a long run takes longer than a short one, so what BigDL's driver does between its two Spark jobs
per iteration counts. `--conf spark.sparkdl.comm.ps.batching=ibatch` and its kin say how layers of `ibatch` travel.

Verified: from the same weights, after ten iterations on the same rows, both have the same weights, up to rounding. BigDL is
installed by `make bigdl`, and this package's adapter built by `make bigdl-jar`.
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ibatched.job import Job, measured
from peers.applications import local_cluster, submit
from peers.arena import PROGRAMS, python_path

from sparkdl_comm.bigdl import installation
from sparkdl_comm.lab import Lab
from sparkdl_comm.lab.arguments import link_rate, names_of, positive, topology_of, whole_numbers
from sparkdl_comm.lab.arguments import parser as bench_parser
from sparkdl_comm.lab.bench import Report, Row, versions

BIGDL = Path(__file__).parents[1] / "build" / "bigdl"
_NETWORKS = ("lenet", "vgg")
_EXECUTOR_MIB = 2048


def rows(found: list[dict[str, Any]], topology: str, rate_mbit: float | None) -> list[Row]:
    return [
        Row(
            suite="bigdl",
            case=one["network"],
            algorithm=one["system"],
            topology=topology,
            rate_mbit=rate_mbit,
            world=one["executors"],
            bytes=4 * one["parameters"],
            samples=one["samples"],
            verified=one["verified"],
            versions=versions("pyspark", "sparkdl_comm") | {"bigdl": "2.4.0"},
            extra={
                "system": one["system"],
                "network": one["network"],
                "executors": one["executors"],
                "iterations_per_second": 1 / statistics.median(one["samples"]),
                "apart": one["apart"],
            },
        )
        for one in found
    ]


def bench(options: Namespace) -> Iterator[Row]:
    """Rows of all systems on all executors asked for.

    :raises LabError: the application failed.
    """
    conf = installation.spark_conf() | dict(setting.split("=", 1) for setting in options.conf)
    about = options.rows, options.seconds, options.repeats
    if options.topology is None:
        for executors in options.executors:
            spark = local_cluster("bench_bigdl", executors, _EXECUTOR_MIB, conf)
            yield from rows(measured(spark, Job(options.networks, executors, *about)), "loopback", None)
            spark.stop()
        return
    topology, folder = options.topology, Path(__file__).parent
    with (
        Lab(topology.with_rates(round(options.rate * 1e6))) as lab,
        lab.spark(memory="1g", env={"PYTHONPATH": python_path(folder, PROGRAMS, BIGDL)}) as spark,
    ):
        job = Job(options.networks, topology.world, *about)
        found = submit(spark, folder / "ibatched" / "job.py", job, options.timeout, conf)
    yield from rows(found, topology.text, options.rate)


def main() -> int:
    parser = bench_parser(__doc__)
    parser.add_argument("--executors", type=whole_numbers(), default="2", help="numbers of executors on local-cluster")
    parser.add_argument("--networks", type=names_of(_NETWORKS), default=",".join(_NETWORKS))
    parser.add_argument("--rows", type=positive, default=16, help="of each executor in an iteration")
    parser.add_argument("--seconds", type=float, default=8.0, help="about so many for the iterations of a long run")
    parser.add_argument("--topology", type=topology_of, help="executors on an emulated network: star:N")
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each link there")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for all on an emulated network")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark, to try settings")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.repeats = 1.0, 1
    sys.path.insert(0, str(BIGDL))
    return Report(json_to=options.json).finish_after(bench(options))


if __name__ == "__main__":
    sys.exit(main())
