"""Spark application: fits of a task, one after another, each with other settings. It has a result for each fit."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.applications import answer
from benchmarks.compression.tasks import Task, task
from lab.settings import applied
from pyspark.sql import DataFrame, SparkSession, functions

from sparkdl_comm import TorchEstimator

_MOMENTUM = 0.9


@dataclass(frozen=True)
class Fits:
    """``ways``: each way's settings of ``spark.sparkdl.comm``, without the prefix. ``epochs``: 0 for the task's own."""

    task: str
    ways: dict[str, dict[str, str]]
    seeds: int
    epochs: int
    ranks: int


def right_share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float().mean()


def falling(optimizer: torch.optim.Optimizer, total_steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule that ends at 0. At a constant rate accuracies would differ by points from epoch to epoch."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)


def sgd(learning_rate: float, settings: Mapping[str, str]) -> functools.partial[torch.optim.SGD]:
    """Return SGD with momentum, unless compression has it."""
    momentum = 0.0 if "compression.momentum" in settings else _MOMENTUM
    return functools.partial(torch.optim.SGD, lr=learning_rate, momentum=momentum)


def trained(data: DataFrame, what: Task, job: Fits, settings: dict[str, str], seed: int) -> dict[str, Any]:
    """Fit the task. Return the seconds of a step and the accuracy on held-out rows, by epoch."""
    with applied(data.sparkSession, settings):
        model = TorchEstimator(
            model=what.network,
            loss="CrossEntropyLoss",
            optimizer=sgd(what.learning_rate, settings),
            lr_scheduler=falling,
            batchSize=what.batch,
            maxIter=job.epochs or what.epochs,
            validationIndicatorCol="held",
            metrics={"accuracy": right_share},
            num_workers=job.ranks,
            seed=seed,
        ).fit(data.withColumn("held", functions.col("fold") == seed % what.folds))
    summary = model.summary or {}
    steps = summary["iterations"] // len(model.history)
    return {
        "seconds_per_step": [row["seconds"] / steps for row in model.history],
        "accuracy": [row["accuracy"] for row in model.history],
        "compression": summary.get("compression", []),
        # A fit fails if its ranks do not end with the same bits.
        "verified": all(map(math.isfinite, (row["loss"] for row in model.history))),
    }


def results(spark: SparkSession, job: Fits) -> Iterator[dict[str, Any]]:
    what = task(job.task)
    data = spark.createDataFrame(what.table, what.types)
    for seed in range(1, job.seeds + 1):
        for name, settings in job.ways.items():
            yield {"way": name, "seed": seed, **trained(data, what, job, settings, seed)}


if __name__ == "__main__":
    answer("compressed fits", Fits, results)
