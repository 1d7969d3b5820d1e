"""A Spark application of bench_auto.py: fits of one emulated network by several strategies, each step an epoch of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from peers.applications import answer
from peers.ways import settings_of
from peers.workload import LEARNING_RATE, ROWS, loss, network, right, rows
from pyspark.sql import SparkSession

from sparkdl_comm import Callback, TorchEstimator
from sparkdl_comm.lab.profile import Profile
from sparkdl_comm.lab.settings import applied
from sparkdl_comm.ml.estimator import TorchModel

AUTO = "auto"


@dataclass(frozen=True)
class AutoJob:
    """``profile``: a file; ``conf``: of spark.sparkdl.comm. Fits of ``ways``, as ``auto.candidates`` calls them, of
    ``fixed_steps``; of auto, of ``steps``, after whose step ``change`` (0: none) the file ``signal`` is made."""

    profile: str
    conf: dict[str, str]
    ways: list[str]
    ranks: int
    fixed_steps: int
    steps: int
    change: int
    signal: str


class Signals(Callback):
    """Makes the file after a step, at rank 0."""

    def __init__(self, step: int, path: str) -> None:
        self._step, self._path = step, path

    def on_step_end(self, state: Any) -> None:
        if state.rank == 0 and state.step == self._step:
            Path(self._path).touch()


def results(spark: SparkSession, job: AutoJob) -> Iterator[dict[str, Any]]:
    count = ROWS * job.ranks
    inputs, targets = rows(count)
    data = spark.createDataFrame(
        pd.DataFrame({"features": list(inputs), "label": targets}), "features array<float>, label float"
    ).cache()
    profile = Profile.read(Path(job.profile))
    for way in job.ways:
        changes = job.change if way == AUTO else 0
        estimator = TorchEstimator(
            model=functools.partial(network, profile),
            loss=loss,
            optimizer=functools.partial(torch.optim.SGD, lr=LEARNING_RATE),
            batchSize=count,
            maxIter=job.steps if way == AUTO else job.fixed_steps,
            num_workers=job.ranks,
            callbacks=[Signals(changes, job.signal)] if changes else [],
        )
        with applied(spark, {**job.conf, **settings_of(way)}):
            model = estimator.fit(data)
        yield {"way": way, **told(model, profile, count)}


def told(model: TorchModel, profile: Profile, count: int) -> dict[str, Any]:
    summary = model.summary
    assert summary is not None
    seconds = [row["seconds"] for row in summary["history"]]
    return {
        "seconds": seconds,
        "total": summary["seconds_per_iteration"] * summary["iterations"],
        "bytes": sum(summary["bytes"].values()) / summary["iterations"],
        "auto": summary.get("auto"),
        "verified": right(model.module, profile, count, summary["iterations"]),
    }


if __name__ == "__main__":
    answer("bench_auto", AutoJob, results)
