"""A Spark application of bench_fetch.py: fetches with one window and another, on the cluster that it is submitted to."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_jar import load_bench_jar
from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Job:
    """`sizes`: bytes of the blocks; `windows`: bytes of the fixed windows. Results go to the file `output`."""

    executors: int
    sizes: list[int]
    windows: list[int]
    repeats: int
    output: str

    @classmethod
    def here(cls) -> Job:
        """From this program's only argument."""
        return cls(**json.loads(sys.argv[1]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


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


def main() -> None:
    job = Job.here()
    spark = SparkSession.builder.appName("bench_fetch").getOrCreate()
    found = measured(spark, job.executors, job.sizes, job.windows, job.repeats)
    Path(job.output).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
