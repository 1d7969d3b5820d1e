"""Fits on encoded images, on an emulated network.

Ranks keep rows in memory, or in a named cache on their executors' disks, where the next fit finds them. Some fits keep half
of these in memory too. Others distribute the rows over all ranks again in each epoch. Then the rows cross the links while
steps are computed.

    python python/benchmarks compression/cache --json

Rows are PNGs of digits at 96 x 96, in Parquet files that every executor can open; on their way to their ranks they cross the
links, and ranks decode them once. For each way the whole fit is timed, with `reading`, the seconds until the slowest rank had
its rows decoded, and `epochs`. `memory` is that of the largest rank's process, without files that it has mapped; `held`, of
all ranks' rows on disks, the bytes that are in memory too. Verified: ways that deal rows alike have the same losses in all
epochs, to the last bit, the others have others, and fits that are to find their rows on disks have only counted them.
"""

from __future__ import annotations

import statistics
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.applications import submit
from benchmarks.command import Note
from benchmarks.compression.cache_job import WAYS, Fits
from lab import Lab
from lab.arguments import link_rate, positive, topology_of
from lab.bench import Row, versions


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """A row for each way."""
    topology = options.topology
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-cache-") as folder,
        Lab(topology.with_rates(round(options.rate * 1e6))) as lab,
        lab.spark(memory=options.memory) as spark,
    ):
        job = Fits(topology.world, options.copies, options.epochs, options.repeats, folder)
        found = submit(spark, Path(__file__).with_name("cache_job.py"), job, options.timeout)
    of_way = {name: [each for each in found if each["way"] == name] for name in WAYS}
    for name, fits in of_way.items():
        yield Row(
            suite="cache",
            case="encoded images",
            algorithm=name,
            topology=topology.text,
            rate_mbit=options.rate,
            world=topology.world,
            bytes=fits[0]["bytes"],
            samples=[fit["seconds"] for fit in fits],
            theory_seconds=None,
            verified=len(fits) == options.repeats and all(_right(name, turn) for turn in _turns(of_way)),
            versions=versions("torch", "numpy", "pyspark", "pillow"),
            extra={
                "reading": statistics.median(fit["reading"] for fit in fits),
                "epochs": [statistics.median(times) for times in zip(*(fit["epochs"] for fit in fits), strict=True)],
                "memory": max(fit["memory"] for fit in fits),
                "disk": fits[0]["disk"],
                "held": fits[0]["held"],
            },
        )


def _turns(of_way: dict[str, list[dict[str, Any]]]) -> list[dict[str, dict[str, Any]]]:
    """The fits of each repetition, by way."""
    return [dict(zip(of_way, fits, strict=True)) for fits in zip(*of_way.values(), strict=True)]


def _right(name: str, turn: dict[str, dict[str, Any]]) -> bool:
    """Whether a way's fit was what it was to be, beside the others on the same files."""
    way, fit = WAYS[name], turn[name]
    alike = all((fit["losses"] == turn[other]["losses"]) == (WAYS[other].shuffle == way.shuffle) for other in WAYS)
    return alike and (fit["cache"], fit["reused"], fit["held"] > 0) == (way.cache, way.reused, way.half)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--topology", type=topology_of, default="star:3", help="of one NIC per host")
    parser.add_argument("--rate", type=link_rate, default=100.0, help="Mbit/s of each host's link, each way")
    parser.add_argument("--copies", type=positive, default=8, help="of each of 1,797 digits, with noise")
    parser.add_argument("--epochs", type=positive, default=2)
    parser.add_argument("--memory", default="1g", help="of an executor's JVM")
    parser.add_argument("--timeout", type=float, default=1500.0, help="seconds for all fits")
    options = parser.parse_args(words)
    if options.quick:
        options.copies, options.repeats = 1, 1
    return options
