"""A Spark application of the benchmark `scale/auto`: fits of one emulated network by several strategies."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.applications import answer
from benchmarks.case import share_of
from benchmarks.workload import LEARNING_RATE, loss, network, right, rows
from lab.settings import applied
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import Callback, TorchEstimator
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.sim.profile import Profile

AUTO = "auto"


@dataclass(frozen=True)
class AutoJob:
    """Fits of the ways, strategies by the names of auto's candidates.

    - ``network``: name of the profile. ``forward``, ``slowdown``: of the emulated network, as in case.py.
    - ``conf``: settings of spark.sparkdl.comm.
    - ``fixed_steps``: steps of a fit. ``steps``: steps of a fit with auto. After step ``change`` (0: none) of such a fit the
      file ``signal`` is created.
    - ``times``: file for the times at which steps end.
    """

    network: str
    forward: float
    slowdown: float
    conf: dict[str, str]
    ways: list[str]
    ranks: int
    fixed_steps: int
    steps: int
    change: int
    signal: str
    times: str


class Marks(Callback):
    """Callback that records when training began and each step ended, and creates a file after one of the steps.

    All steps are in one epoch. At its end the module has to be complete, so nothing would overlap the next step.
    """

    def __init__(self, times: str, step: int, signal: str) -> None:
        self._times, self._step, self._signal = times, step, signal

    def on_train_begin(self, state: Any) -> None:
        self._ends = [time.monotonic()]

    def on_step_end(self, state: Any) -> None:
        self._ends.append(time.monotonic())
        if state.rank == 0 and state.step == self._step:
            Path(self._signal).touch()

    def on_train_end(self, state: Any) -> None:
        if state.rank == 0:
            Path(self._times).write_text(json.dumps(self._ends))


def results(spark: SparkSession, job: AutoJob) -> Iterator[dict[str, Any]]:
    profile, datas = share_of(job.network, job.forward, job.slowdown), {}
    for way in job.ways:
        steps = job.steps if way == AUTO else job.fixed_steps
        data = datas.setdefault(steps, _data(spark, job.ranks * steps).cache())
        estimator = TorchEstimator(
            model=functools.partial(network, profile),
            loss=loss,
            optimizer=functools.partial(torch.optim.SGD, lr=LEARNING_RATE),
            batchSize=job.ranks,
            maxIter=1,
            num_workers=job.ranks,
            callbacks=[Marks(job.times, job.change if way == AUTO else 0, job.signal)],
        )
        with applied(spark, {**job.conf, "strategy": way}):
            model = estimator.fit(data)
        yield {"way": way, **_result(model, profile, job)}


def _data(spark: SparkSession, count: int) -> DataFrame:
    """Return rows with equal means, which alone an emulated network sees, so that all steps are the same.

    The rows differ, as their contents decide which rank gets them.
    """
    (inputs,), targets = rows(1)
    random = np.random.default_rng(1)
    alike = pd.DataFrame({"features": [random.permutation(inputs) for _ in range(count)], "label": targets[0]})
    return spark.createDataFrame(alike, "features array<float>, label float")


def _result(model: TorchModel, profile: Profile, job: AutoJob) -> dict[str, Any]:
    summary = model.summary
    assert summary is not None
    ends = json.loads(Path(job.times).read_text())
    return {
        "seconds": [later - sooner for sooner, later in itertools.pairwise(ends)],
        "bytes": sum(summary["bytes"].values()) / summary["iterations"],
        "auto": summary.get("auto"),
        "verified": right(model.module, profile, 1, summary["iterations"]),
    }


if __name__ == "__main__":
    answer("bench_auto", AutoJob, results)
