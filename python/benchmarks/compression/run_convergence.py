"""Convergence and speed of training with compressed gradients, beside dense training: whole fits.

    python python/benchmarks compression/convergence --tasks lenet5 --json FILE
    python python/benchmarks compression/convergence --tasks transformer --ways dense,exact,auto --rates 100,1000 --seeds 1

Fits of this package's estimator on real data, by Spark executors on emulated hosts: see lab for what it needs. ``--ways``
lists configurations, which differ in strategy and compression alone. They have the same rows, seeds, epochs and learning
rates, which fall to 0, and SGD with momentum 0.9. The seed decides the network, the order of rows, and which fifth of the
digits is held out. With five seeds each digit is tested once. ``hitopk-mstopk`` selects like the paper's HiTopK, the other
hierarchical configurations exactly. ``-lost`` is without error feedback, ``-momentum`` with momentum correction, ``auto``
with schedule auto.

A row is a task in a configuration: seconds of a step after the first epochs, and the accuracy on held-out rows after the last
epoch, of each seed. Verified: all losses are finite, and all ranks end with the same bits.
"""

from __future__ import annotations

import functools
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.applications import answer, submit
from benchmarks.command import Note
from benchmarks.compression.tasks import TASKS, Task, task
from lab import Lab
from lab.arguments import link_rates, names_of, positive
from lab.bench import Row
from lab.settings import applied
from pyspark.sql import DataFrame, SparkSession, functions

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.networks import parameter_count
from sparkdl_comm.topology import Topology

TOPOLOGY = Topology.parse("hosts:2x2")
#: Seconds for a task at a rate.
TIMEOUT = 3000.0
#: First epoch whose steps count, from 0. Before it JVMs and Python compile and connect, and auto tries.
_FIRST_TIMED = 2


def _sparse(strategy: str, operator: str, **more: str) -> dict[str, str]:
    about = {f"compression.{name}": value for name, value in more.items()}
    return {"strategy": strategy, "compression": f"{operator}:0.01", **about}


#: Settings of each configuration, without their prefix.
WAYS = {
    "dense": {"strategy": "ring"},
    **{operator: _sparse("ring", operator) for operator in ("exact", "mstopk", "topk")},
    "hitopk": _sparse("hitopk", "exact"),
    "hitopk-mstopk": _sparse("hitopk", "mstopk"),
    "powersgd": {"strategy": "ring", "compression": "powersgd:2"},
    "exact-lost": _sparse("ring", "exact", feedback="false"),
    "hitopk-momentum": _sparse("hitopk", "exact", momentum="0.9"),
    "auto": _sparse("ring", "exact", schedule="auto"),
}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Run all fits. Yield a row of results for each rate, task and configuration."""
    chosen = {name: WAYS[name] for name in options.ways}
    for rate in options.rates:
        with Lab(TOPOLOGY.with_rates(round(rate * 1e6))) as lab, lab.spark(memory="1g") as spark:
            for name in options.tasks:
                job = Fits(name, chosen, options.seeds, options.epochs, TOPOLOGY.world)
                found = submit(spark, Path(__file__), job, TIMEOUT)
                for way in chosen:
                    yield _row(name, way, rate, [result for result in found if result["way"] == way])


def _row(name: str, way: str, rate: float, fits: list[dict[str, Any]]) -> Row:
    return Row(
        suite="convergence",
        case=name,
        algorithm=way,
        topology=TOPOLOGY.text,
        rate_mbit=rate,
        world=TOPOLOGY.world,
        bytes=4 * parameter_count(TASKS[name]().network()),
        samples=[seconds for fit in fits for seconds in fit["seconds_per_step"][_FIRST_TIMED:]],
        verified=all(fit["verified"] for fit in fits),
        extra={
            "accuracies": [fit["accuracy"][-1] for fit in fits],
            "curves": [fit["accuracy"] for fit in fits],
            "tried": [fit["compression"] for fit in fits],
        },
    )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    usual = "dense,exact,hitopk,exact-lost,hitopk-momentum,powersgd"
    parser.add_argument("--tasks", type=names_of(TASKS), default=",".join(TASKS), help="some of %(default)s")
    parser.add_argument("--ways", type=names_of(WAYS), default=usual, help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--rates", type=link_rates, default="1000", help="Mbit/s of each host's link, each way")
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--epochs", type=int, default=0, help="0: those of the task")
    options = parser.parse_args(words)
    if options.quick:
        options.seeds, options.epochs = 1, _FIRST_TIMED + 1
    return options


# --- The application --------------------------------------------------------------------------------------------------

_MOMENTUM = 0.9


@dataclass(frozen=True)
class Fits:
    """Fits of a task in several configurations.

    ``ways``: settings of ``spark.sparkdl.comm`` by configuration, without the prefix. ``epochs``: 0 for the task's own.
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
