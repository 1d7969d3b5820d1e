"""Spark application: trainings of a network on images that grow from stage to stage. It has a result for each training.

A stage fits the model of the stage before on larger images, with other settings. It has a new optimizer and no residual.
Learning rates go on falling from stage to stage.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.applications import answer
from benchmarks.compression.convergence_job import fit
from benchmarks.compression.tasks import DIGITS_TYPES, FOLDS, digits_table
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl_comm import TorchModel

BATCH = 32
_LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Trainings:
    """Trainings by several ways.

    ``ways``: each way's settings of ``spark.sparkdl.comm`` by stage, without the prefix. ``sides``: the images' pixels in
    each stage. ``epochs``: epochs of each stage.
    """

    ways: dict[str, list[dict[str, str]]]
    sides: list[int]
    epochs: list[int]
    seeds: int
    ranks: int


class AnySize(nn.Sequential):
    """Network for images of any size, with 241,898 parameters. Input [rows, 1, side, side], output [rows, 10]."""

    def __init__(self) -> None:
        super().__init__(
            *_convolution(1, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            nn.MaxPool2d(2),
            *_convolution(64, 128),
            *_convolution(128, 128),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU()


def falling(
    optimizer: torch.optim.Optimizer, total_steps: int, begin: float, end: float
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule from one share of the learning rate to another, in equal steps."""
    return torch.optim.lr_scheduler.LinearLR(optimizer, begin, end, total_steps)


def training(
    images: Mapping[int, DataFrame], stages: Sequence[dict[str, str]], job: Trainings, seed: int
) -> list[dict[str, Any]]:
    """Train once. Return for each stage the ``steps`` of an epoch and, by epoch, ``seconds``, ``accuracy`` and ``loss``."""
    model: type[AnySize] | TorchModel = AnySize
    trained = []
    for number, (side, settings) in enumerate(zip(job.sides, stages, strict=True)):
        begin, end = (1 - sum(job.epochs[: number + more]) / sum(job.epochs) for more in (0, 1))
        model = fit(
            images[side],
            settings,
            _LEARNING_RATE,
            FOLDS,
            seed,
            model=model,
            lr_scheduler=functools.partial(falling, begin=begin, end=end),
            inputShapes=[[1, side, side]],
            batchSize=BATCH,
            maxIter=job.epochs[number],
            num_workers=job.ranks,
        )
        by_epoch = {name: [row[name] for row in model.history] for name in ("seconds", "accuracy", "loss")}
        trained.append({"steps": model.history[-1]["step"] // len(model.history), **by_epoch})
    return trained


def results(spark: SparkSession, job: Trainings) -> Iterator[dict[str, Any]]:
    images = {side: spark.createDataFrame(digits_table(side), DIGITS_TYPES) for side in job.sides}
    for seed in range(1, job.seeds + 1):
        for name, stages in job.ways.items():
            trained = training(images, stages, job, seed)
            # A fit fails if its ranks do not end with the same bits.
            finite = all(math.isfinite(loss) for stage in trained for loss in stage["loss"])
            yield {"way": name, "stages": trained, "verified": finite}


if __name__ == "__main__":
    answer("growing images", Trainings, results)
