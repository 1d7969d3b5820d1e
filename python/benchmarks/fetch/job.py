"""Spark application of the benchmark `fetch`: fetches blocks with several windows, on the cluster that runs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks.applications import answer, load_bench_jar
from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Job:
    """Job of the application: `sizes` and `windows` are the bytes of the blocks and of the fixed windows."""

    executors: int
    sizes: list[int]
    windows: list[int]
    repeats: int


def measured(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    """Return the rows that FetchBench.scala measures."""
    context = spark.sparkContext
    load_bench_jar(context)
    bench = context._jvm.sparkdl.comm.bench.FetchBench
    texts = [",".join(map(str, numbers)) for numbers in (job.sizes, job.windows)]
    found: list[dict[str, Any]] = json.loads(bench.run(context._jsc.sc(), job.executors, *texts, job.repeats))
    return found


if __name__ == "__main__":
    answer("bench_fetch", Job, measured)
