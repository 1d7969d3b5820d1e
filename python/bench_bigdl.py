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

import json
import statistics
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from ibatched.job import Job, measured
from peers.applications import submit
from peers.arena import PROGRAMS, python_path
from pyspark.sql import SparkSession

from sparkdl_comm.bigdl import installation
from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.lab import Lab
from sparkdl_comm.lab.bench import Report, Row, positive, versions
from sparkdl_comm.lab.bench import parser as bench_parser
from sparkdl_comm.topology import Topology

BIGDL = Path(__file__).parents[1] / "build" / "bigdl"


def session(executors: int, settings: list[str]) -> SparkSession:
    conf = {
        **installation.spark_conf(),
        "spark.master": f"local-cluster[{executors},1,2048]",
        "spark.executor.memory": "2048m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **dict(setting.split("=", 1) for setting in settings),
    }
    spark = SparkSession.builder.appName("bench_bigdl").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


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


def bench_here(options: Namespace, report: Report) -> None:
    for executors in options.executors:
        spark = session(executors, options.conf)
        job = Job(options.networks, executors, options.rows, options.seconds, options.repeats)
        for row in rows(measured(spark.sparkContext, job), "loopback", None):
            report.add(row)
        spark.stop()


def bench_on_links(options: Namespace, report: Report) -> None:
    """:raises LabError: the application failed."""
    topology = Topology.parse(options.topology)
    folder = Path(__file__).parent
    path = python_path(folder, PROGRAMS, BIGDL)
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-bigdl-") as results,
        Lab(topology.with_rates(round(options.rate * 1e6))) as lab,
        lab.spark(memory="1g", env={"PYTHONPATH": path}) as spark,
    ):
        output = f"{results}/out"
        job = Job(options.networks, topology.world, options.rows, options.seconds, options.repeats, output)
        conf = installation.spark_conf() | dict(setting.split("=", 1) for setting in options.conf)
        submit(spark, folder / "ibatched" / "job.py", job.to_json(), options.timeout, conf)
        found = [json.loads(line) for line in Path(output).read_text().splitlines()]
        for row in rows(found, topology.text, options.rate):
            report.add(row)


def main() -> int:
    parser = bench_parser(__doc__)
    numbers = lambda text: [positive(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--executors", type=numbers, default="2", help="numbers of executors on local-cluster")
    parser.add_argument("--networks", type=lambda text: text.split(","), default="lenet,vgg")
    parser.add_argument("--rows", type=positive, default=16, help="of each executor in an iteration")
    parser.add_argument("--seconds", type=float, default=8.0, help="about so many for the iterations of a long run")
    parser.add_argument("--topology", help="executors on an emulated network: star:N")
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of each link there")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for all on an emulated network")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark, to try settings")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.repeats = 1.0, 1
    sys.path.insert(0, str(BIGDL))
    report = Report(json_to=options.json)
    try:
        bench_on_links(options, report) if options.topology else bench_here(options, report)
    except SparkdlCommError as error:
        parser.error(str(error))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
