"""Fits on encoded images, on an emulated network, with the rows in memory or in a named cache on the executors' disks.

    python python/benchmarks compression/cache --json

The next fit finds the rows of a named cache. Some fits keep half of them in memory too. Others distribute the rows over all
ranks again in each epoch: the rows then cross the links while steps are computed. Rows are PNGs of digits at 96 x 96, in
Parquet files that every executor can open. Ranks decode them once.

A row is a way: seconds of the whole fit, with `reading`, the seconds until the slowest rank had decoded its rows, and
`epochs`. `memory`: of the largest rank's process, without mapped files. `disk` and `held`: bytes of all ranks' rows on disks,
and the part of them that is in memory too. Verified: ways with the same order of rows have the same losses in all epochs,
to the last bit, others have not; fits that should find their rows on disks have done so.
"""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.applications import submit
from benchmarks.command import Note
from benchmarks.compression.cache_job import WAYS, Fits
from lab import Lab
from lab.bench import Row

from sparkdl_comm.topology import Topology

TOPOLOGY, RATE_MBIT = Topology.parse("star:3"), 100.0
#: Copies of each of 1,797 digits, epochs of a fit, and seconds for all fits.
COPIES, EPOCHS, TIMEOUT = 8, 2, 1500.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Yield a row for each way."""
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-cache-") as folder,
        Lab(TOPOLOGY.with_rates(round(RATE_MBIT * 1e6))) as lab,
        lab.spark(memory="1g") as spark,
    ):
        job = Fits(TOPOLOGY.world, 1 if options.quick else COPIES, EPOCHS, options.repeats, folder)
        found = submit(spark, Path(__file__).with_name("cache_job.py"), job, TIMEOUT)
    of_way = {name: [each for each in found if each["way"] == name] for name in WAYS}
    repeats = [dict(zip(of_way, fits, strict=True)) for fits in zip(*of_way.values(), strict=True)]
    for name, fits in of_way.items():
        yield Row(
            suite="cache",
            case="encoded images",
            algorithm=name,
            topology=TOPOLOGY.text,
            rate_mbit=RATE_MBIT,
            world=TOPOLOGY.world,
            bytes=fits[0]["bytes"],
            samples=[fit["seconds"] for fit in fits],
            verified=len(fits) == options.repeats and all(_is_right(name, repeat) for repeat in repeats),
            extra={
                "reading": statistics.median(fit["reading"] for fit in fits),
                "epochs": [statistics.median(times) for times in zip(*(fit["epochs"] for fit in fits), strict=True)],
                "memory": max(fit["memory"] for fit in fits),
                "disk": fits[0]["disk"],
                "held": fits[0]["held"],
            },
        )


def _is_right(name: str, fits: dict[str, dict[str, Any]]) -> bool:
    """Check a way's fit beside the other fits on the same files."""
    way, fit = WAYS[name], fits[name]
    alike = all((fit["losses"] == fits[other]["losses"]) == (WAYS[other].shuffle == way.shuffle) for other in WAYS)
    return alike and (fit["cache"], fit["reused"], fit["held"] > 0) == (way.cache, way.reused, way.half)
