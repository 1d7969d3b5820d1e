"""Fits on encoded images, on an emulated network, with the rows in memory or in a named cache on the executors' disks.

    python python/benchmarks compression/cache --json

The next fit finds the rows of a named cache. Some fits keep half of them in memory too. Others distribute the rows over all
ranks again in each epoch: the rows then cross the links while steps are computed. Rows are PNGs of digits at 96 x 96, in
Parquet files that every executor can open. Ranks decode them once.

A row is a storage mode (see `WAYS`): seconds of the whole fit, with `reading`, the seconds until the slowest rank had decoded
its rows, and `epochs`. `memory`: of the largest rank's process, without mapped files. `disk` and `held`: bytes of all ranks'
rows on disks, and the part of them that is in memory too. Verified: fits with the same order of rows have the same losses in
all epochs, to the last bit. Fits with another order have other losses. Fits that should find their rows on disks have done so.
"""

from __future__ import annotations

import functools
import io
import re
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.applications import answer, submit
from benchmarks.command import Note
from lab import Lab
from lab.bench import Row
from PIL import Image
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn

from sparkdl_comm import Callback, TorchEstimator
from sparkdl_comm.conf import PREFIX
from sparkdl_comm.topology import Topology

TOPOLOGY, RATE_MBIT = Topology.parse("star:3"), 100.0
#: Copies of each of 1,797 digits, epochs of a fit, and seconds for all fits.
COPIES, EPOCHS, TIMEOUT = 8, 2, 1500.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Run all fits. Yield a row of results for each storage mode."""
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-cache-") as folder,
        Lab(TOPOLOGY.with_rates(round(RATE_MBIT * 1e6))) as lab,
        lab.spark(memory="1g") as spark,
    ):
        job = Fits(TOPOLOGY.world, 1 if options.quick else COPIES, EPOCHS, options.repeats, folder)
        found = submit(spark, Path(__file__), job, TIMEOUT)
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
    """Check a storage mode's fit beside the other fits on the same files."""
    way, fit = WAYS[name], fits[name]
    alike = all((fit["losses"] == fits[other]["losses"]) == (WAYS[other].shuffle == way.shuffle) for other in WAYS)
    return alike and (fit["cache"], fit["reused"], fit["held"] > 0) == (way.cache, way.reused, way.half)


# --- The application --------------------------------------------------------------------------------------------------

PIXELS = 96
DIGITS = 1797
_NOISE = 8


@dataclass(frozen=True)
class Way:
    """Storage mode of a fit's rows.

    ``cache``: memory, or disk for a named cache. ``reused``: the fit finds the rows there. ``half``: half of a rank's rows on
    disk are in memory too. ``shuffle``: the conf's ``data.shuffle``.
    """

    cache: str
    reused: bool = False
    half: bool = False
    shuffle: str = "local"


#: Storage modes by name, in the order of their fits on the same files.
WAYS = {
    "memory, first fit": Way("memory"),
    "memory, second fit": Way("memory"),
    "disk, first fit": Way("disk"),
    "disk, second fit": Way("disk", reused=True),
    "disk, half in memory": Way("disk", reused=True, half=True),
    "memory, dealt anew": Way("memory", shuffle="global"),
    "disk, half in memory, dealt anew": Way("disk", reused=True, half=True, shuffle="global"),
}


@dataclass(frozen=True)
class Fits:
    """Fits in all storage modes.

    ``copies``: noisy copies of each digit. ``epochs``: epochs of a fit. ``repeats``: rounds of all modes, each on new files.
    """

    ranks: int
    copies: int
    epochs: int
    repeats: int
    folder: str

    @property
    def half(self) -> int:
        """About half the bytes of a rank on its disk: images in float32, and labels in int64."""
        return self.copies * DIGITS * (4 * PIXELS**2 + 8) // self.ranks // 2


class Network(nn.Sequential):
    """Network that computes little, with 16,970 parameters. Input float32 [rows, 96, 96], output [rows, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 8, stride=8),
            nn.ReLU(),
            nn.AvgPool2d(3),
            nn.Flatten(),
            nn.Linear(256, 62),
            nn.ReLU(),
            nn.Linear(62, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.unsqueeze(1).float() / 255)


class Memory(Callback):
    """Callback that writes each rank's final memory to a file, without mapped files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_train_end(self, state: Any) -> None:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        Path(self.folder, str(state.rank)).write_text(str(int(found[1]) * 1024))


def decode(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def images(copies: int, seed: int) -> pd.DataFrame:
    """Return a table of ``image``, PNGs of digits at 96 x 96, and ``label``."""
    digits, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    rows = []
    for digit, label in zip(digits.astype(np.float32), labels, strict=True):
        large = Image.fromarray(digit.reshape(8, 8) * 15).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
        for _ in range(copies):
            noisy = np.clip(np.asarray(large) + random.normal(0, _NOISE, (PIXELS, PIXELS)), 0, 255).astype(np.uint8)
            file = io.BytesIO()
            Image.fromarray(noisy).save(file, "png")
            rows.append((file.getvalue(), int(label)))
    return pd.DataFrame(rows, columns=["image", "label"])


def files(job: Fits, seed: int) -> Path:
    """Write images to Parquet files. Return their folder."""
    path = Path(job.folder, f"images{seed}")
    table = images(job.copies, seed)
    path.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(table)), 2 * job.ranks)):
        table.iloc[part].to_parquet(path / f"{number}.parquet")
    return path


def fit(spark: SparkSession, path: Path, job: Fits, way: Way) -> dict[str, Any]:
    folder = Path(job.folder, f"memory{time.monotonic_ns()}")
    folder.mkdir()
    spark.conf.set(f"{PREFIX}data.cacheName", path.name if way.cache == "disk" else "")
    spark.conf.set(f"{PREFIX}data.cacheDir", job.folder)
    spark.conf.set(f"{PREFIX}data.memoryLimit", f"{job.half}B" if way.half else "0")
    spark.conf.set(f"{PREFIX}data.shuffle", way.shuffle)
    begin = time.perf_counter()
    model = TorchEstimator(
        model=Network,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        featuresCol="image",
        decode=decode,
        callbacks=[Memory(str(folder))],
        batchSize=128,
        maxIter=job.epochs,
        num_workers=job.ranks,
        strategy="ring",
    ).fit(spark.read.parquet(str(path)))
    seconds = time.perf_counter() - begin
    data = (model.summary or {})["data"]
    return {
        "seconds": seconds,
        "reading": data["seconds"],
        "epochs": [row["seconds"] for row in model.history],
        "losses": [row["loss"] for row in model.history],
        "memory": max(int(each.read_text()) for each in folder.iterdir()),
        "disk": data["bytes"],
        "held": data["held"],
        "cache": data["cache"],
        "reused": data["reused"],
    }


def results(spark: SparkSession, job: Fits) -> Iterator[dict[str, Any]]:
    # All of them first: Spark ends Python workers that have nothing to do for a minute, and making images takes as long.
    paths = [files(job, repeat) for repeat in range(job.repeats + 1)]
    for repeat, path in enumerate(paths):  # the first one, which starts Python and compiles, does not count
        for name, way in WAYS.items():
            found = fit(spark, path, job, way)
            if repeat:
                size = sum(file.stat().st_size for file in path.iterdir())
                yield {"way": name, "bytes": size, **found}


if __name__ == "__main__":
    answer("cached fits", Fits, results)
