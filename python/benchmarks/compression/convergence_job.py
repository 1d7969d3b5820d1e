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

from sparkdl_comm import TorchEstimator, TorchModel

_MOMENTUM = 0.9


@dataclass(frozen=True)
class Fits:
    """Fits of a task by several ways.

    ``ways``: each way's settings of ``spark.sparkdl.comm``, without the prefix. ``epochs``: 0 for the task's own.
    """

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


def fit(data: DataFrame, settings: Mapping[str, str], rate: float, folds: int, seed: int, **params: Any) -> TorchModel:
    """Fit with a fold held out, by SGD with momentum, unless compression has it.

    :param settings: of spark.sparkdl.comm, without the prefix.
    :param rate: learning rate. ``params``: further Params of the estimator.
    """
    momentum = 0.0 if "compression.momentum" in settings else _MOMENTUM
    with applied(data.sparkSession, settings):
        return TorchEstimator(
            loss="CrossEntropyLoss",
            optimizer=functools.partial(torch.optim.SGD, lr=rate, momentum=momentum),
            validationIndicatorCol="held",
            metrics={"accuracy": right_share},
            seed=seed,
            **params,
        ).fit(data.withColumn("held", functions.col("fold") == seed % folds))


def trained(data: DataFrame, what: Task, job: Fits, settings: dict[str, str], seed: int) -> dict[str, Any]:
    """Fit the task. Return the seconds of a step and the accuracy on held-out rows, by epoch."""
    model = fit(
        data,
        settings,
        what.learning_rate,
        what.folds,
        seed,
        model=what.network,
        lr_scheduler=falling,
        batchSize=what.batch,
        maxIter=job.epochs or what.epochs,
        num_workers=job.ranks,
    )
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
            yield {"way": name, **trained(data, what, job, settings, seed)}


if __name__ == "__main__":
    answer("compressed fits", Fits, results)
