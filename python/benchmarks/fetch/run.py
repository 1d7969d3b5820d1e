"""Time to bring a block from one executor to another: this package's fetch beside Spark's `fetchBlockSync` and memory.

    python python/benchmarks fetch --json

One executor measures and the others serve, in local-cluster over loopback. These methods are measured in turn:

- `fetchBlockSync` is Spark's, and leaves the block in a buffer.
- `fetch` writes the block into memory of the caller's choice as it arrives.
- `notice` is a message with the block in it, of at most 64 KiB. Its time is half of a round trip.
- `at once` fetches a block from each server in parallel, `in turn` one after another. Bytes are those of all servers.
- `same host` copies a block from another executor's shared memory, `memcpy` one from the executor's own memory.
- `bf16` and `fp16`, `encode` and `decode`, are the conversions of `ps.wire`. Bytes are those of the float32 numbers.

    python python/benchmarks fetch --windows 64KiB,256KiB,1MiB --topology star:4 --rate 10,50,200,1000 --json

Blocks come from all servers at once, with the adaptive window (`own`) and with each of these fixed windows. They take
about a second on links. Without `--topology` they have `--sizes`, over loopback.

Verified: the bytes that arrive in every run, and decoded numbers up to rounding.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.applications import answer, load_bench_jar, local_cluster, set_rate, submit
from benchmarks.command import Note
from lab import Lab
from lab.arguments import link_rates, sizes, topology_of, whole_numbers
from lab.bench import Row
from pyspark.sql import SparkSession

from sparkdl_comm import spark_conf

#: Seconds for all runs at a rate.
TIMEOUT = 600.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    if options.topology:
        yield from _on_links(options)
        return
    for servers in options.servers:
        spark = local_cluster("bench_fetch", servers + 1, 1536, spark_conf(progress=False))
        yield from on_this_machine(spark, servers + 1, options.bytes, options.repeats, options.windows)
        spark.stop()


def on_this_machine(
    spark: SparkSession, executors: int, blocks: list[int], repeats: int, windows: Sequence[int] = ()
) -> list[Row]:
    return _rows(measured(spark, Job(executors, blocks, list(windows), repeats)), executors, "loopback", None)


def _rows(found: list[dict[str, Any]], executors: int, topology: str, rate_mbit: float | None) -> list[Row]:
    return [
        Row(
            suite="fetch",
            case=f"{one['servers']} server{'s' if one['servers'] > 1 else ''}",
            algorithm=one["way"],
            topology=topology,
            rate_mbit=rate_mbit,
            world=executors,
            bytes=one["bytes"] * one["servers"],
            # A notice is timed there and back.
            samples=[seconds / 2 if one["way"] == "notice" else seconds for seconds in one["seconds"]],
            theory_seconds=rate_mbit and one["bytes"] * one["servers"] * 8 / (rate_mbit * 1e6),
            verified=one["verified"],
        )
        for one in found
    ]


def _on_links(options: Namespace) -> Iterator[Row]:
    """Measure all windows at each rate. Yield a row of results for each rate and window.

    :raises LabError: an application failed.
    """
    topology = options.topology
    with Lab(topology.with_rates(round(options.rate[0] * 1e6))) as lab, lab.spark(memory="512m") as spark:
        for rate in options.rate:
            set_rate(lab, rate * 1e6)
            block = max(256 << 10, round(rate * 1e6 / 8 / (topology.world - 1)))
            job = Job(topology.world, [block], options.windows, options.repeats)
            found = submit(spark, Path(__file__), job, TIMEOUT)
            yield from _rows(found, topology.world, topology.text, rate)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.set_defaults(repeats=30)
    parser.add_argument("--servers", type=whole_numbers(), default="1,3", help="numbers of serving executors")
    parser.add_argument(
        "--sizes",
        dest="bytes",
        type=sizes,
        default="1KiB,64KiB,1MiB,16MiB,64MiB",
        help="sizes of a block: 16 (MiB), 64KiB, ...",
    )
    parser.add_argument("--windows", type=sizes, default=[], help="fixed windows, beside the adaptive one")
    parser.add_argument("--topology", type=topology_of, help="measure windows on an emulated network: star:N")
    parser.add_argument("--rate", type=link_rates, default="200", help="Mbit/s of each of its links")
    options = parser.parse_args(words)
    if options.quick:
        options.servers, options.bytes = [2], sizes("1KiB,1MiB")
    if options.topology and not options.windows:
        parser.error("--topology measures only windows. Add --windows.")
    return options


# --- The application --------------------------------------------------------------------------------------------------


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
