"""Training on growing images, with compressed gradients while images are small, like the CommLib paper's record run.

    python python/benchmarks compression/record --json python/benchmarks/compression/results/compress-record.json

Fits of this package's estimator on digits, by Spark executors on emulated hosts: see lab for what it needs. A training has
a stage for each of SIDES, with as many EPOCHS (see `training`). The configurations are those of the paper's section 5.6.
`record` sums by hitopk, with momentum correction, in the first stage, and by the dense 2D torus in later stages. `sparse`
sums by hitopk in all stages, and `dense` by the torus.

A row is a configuration in a stage: seconds of a step of `rows`, without the stage's first epoch, in which Python and JVMs
start; and `accuracies` after the stage, of each seed. One more row of each configuration is of whole trainings: seconds of
all steps up to the end of the first epoch with the TARGET accuracy on held-out rows, which `reached` trainings have.
Verified: all losses are finite, and all ranks end with the same bits.
"""

from __future__ import annotations

import functools
import itertools
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.applications import answer, submit
from benchmarks.command import Note
from benchmarks.compression.run_convergence import fit
from benchmarks.compression.tasks import DIGITS_TYPES, FOLDS, digits_table
from lab import Lab
from lab.bench import Row
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl_comm import TorchModel
from sparkdl_comm.networks import parameter_count
from sparkdl_comm.topology import Topology

TOPOLOGY, QUICK_TOPOLOGY, RATE_MBIT = Topology.parse("hosts:4x2"), Topology.parse("hosts:2x2"), 200.0
#: Pixels of the images' sides, and epochs, in each stage.
SIDES, EPOCHS = (16, 24, 32), (10, 5, 3)
DENSITY, TARGET, SEEDS = 0.01, 0.97, 3
#: Seconds for all trainings.
TIMEOUT = 3000.0
#: First epochs of a stage whose steps do not count.
_UNTIMED = 1


def ways(stages: int) -> dict[str, list[dict[str, str]]]:
    """Return each configuration's settings by stage, without their prefix."""
    dense = {"strategy": "torus2d"}
    sparse = {"strategy": "hitopk", "compression": f"exact:{DENSITY:g}", "compression.momentum": "0.9"}
    return {
        "dense": [dense] * stages,
        "sparse": [sparse] * stages,
        "record": [sparse, *[dense] * (stages - 1)],
    }


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Run all trainings. For each configuration, yield a row of results for each stage, and one for all stages."""
    topology, sides, epochs, seeds = TOPOLOGY, SIDES, EPOCHS, SEEDS
    if options.quick:
        topology, sides, epochs, seeds = QUICK_TOPOLOGY, (8, 16), (_UNTIMED + 1,) * 2, 1
    job = Trainings(ways(len(sides)), list(sides), list(epochs), seeds, topology.world)
    with Lab(topology.with_rates(round(RATE_MBIT * 1e6))) as lab, lab.spark(memory="1g") as spark:
        found = submit(spark, Path(__file__), job, TIMEOUT)
    for way in job.ways:
        yield from _rows(way, [result for result in found if result["way"] == way], job, topology)


def _rows(way: str, trainings: list[dict[str, Any]], job: Trainings, topology: Topology) -> Iterator[Row]:
    def row(case: str, samples: Sequence[float], **extra: Any) -> Row:
        return Row(
            suite="record",
            case=case,
            algorithm=way,
            topology=topology.text,
            rate_mbit=RATE_MBIT,
            world=topology.world,
            bytes=4 * parameter_count(AnySize()),
            samples=samples,
            verified=all(training["verified"] for training in trainings),
            extra=extra,
        )

    for number, (side, settings) in enumerate(zip(job.sides, job.ways[way], strict=True)):
        stages = [training["stages"][number] for training in trainings]
        yield row(
            f"{side} x {side}",
            [seconds / stage["steps"] for stage in stages for seconds in stage["seconds"][_UNTIMED:]],
            strategy=settings["strategy"],
            epochs=job.epochs[number],
            rows=BATCH,
            accuracies=[stage["accuracy"][-1] for stage in stages],
        )
    times = [time_to(TARGET, training["stages"]) for training in trainings]
    yield row(
        "training",
        [seconds for seconds, _ in times],
        target=TARGET,
        reached=sum(is_reached for _, is_reached in times),
        accuracies=[training["stages"][-1]["accuracy"][-1] for training in trainings],
    )


def time_to(target: float, stages: Sequence[dict[str, list[float]]]) -> tuple[float, bool]:
    """Return the seconds of all steps up to the end of the first epoch with that accuracy, and True if there is one."""
    seconds = itertools.accumulate(each for stage in stages for each in stage["seconds"])
    total = 0.0
    for total, share in zip(seconds, (share for stage in stages for share in stage["accuracy"]), strict=True):
        if share >= target:
            return total, True
    return total, False


# --- The application --------------------------------------------------------------------------------------------------

BATCH = 32
_LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Trainings:
    """Trainings in several configurations.

    ``ways``: settings of ``spark.sparkdl.comm`` by configuration and stage, without the prefix. ``sides``: the images'
    pixels in each stage. ``epochs``: epochs of each stage.
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
    """Train once. Return for each stage the ``steps`` of an epoch and, by epoch, ``seconds``, ``accuracy`` and ``loss``.

    A stage fits the model of the stage before on larger images, with other settings. It has a new optimizer and no
    residual. Learning rates go on falling from stage to stage.
    """
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
