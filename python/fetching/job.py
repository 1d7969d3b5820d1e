"""A Spark application of bench_fetch.py: fetches with one window and another, on the cluster that it is submitted to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bench_jar import load_bench_jar
from peers.applications import answer
from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Job:
    """`sizes`: bytes of the blocks; `windows`: bytes of the fixed windows."""

    executors: int
    sizes: list[int]
    windows: list[int]
    repeats: int


def measured(
    spark: SparkSession, executors: int, sizes: list[int], windows: list[int], repeats: int
) -> list[dict[str, Any]]:
    """What FetchBench.scala answers."""
    context = spark.sparkContext
    load_bench_jar(context)
    bench = context._jvm.sparkdl.comm.bench.FetchBench
    texts = [",".join(map(str, numbers)) for numbers in (sizes, windows)]
    found: list[dict[str, Any]] = json.loads(bench.run(context._jsc.sc(), executors, *texts, repeats))
    return found


def results(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    return measured(spark, job.executors, job.sizes, job.windows, job.repeats)


if __name__ == "__main__":
    answer("bench_fetch", Job, results)
