"""What bench_bigdl.py measures, in a Spark session: BigDL's DistriOptimizer and IBatchOptimizer, on the same executors.

All rows of the data are one batch, so both have the same rows in each iteration, whatever their order. A run sets up, trains
and ends; the time of an iteration is what a long run takes longer than a short one. So all that happens between iterations
counts, and nothing of a run's begin and end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from peers.applications import answer
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkdl_comm.bigdl.engine import start_engine
from sparkdl_comm.networks import digits_28x28

SYSTEMS = ("bigdl", "ibatch")
LEARNING_RATE = 0.05
#: How far weights may be from those of DistriOptimizer, as a share of the furthest way that one of these has gone.
TOLERANCE = 1e-3
#: Iterations of the short run, and of the runs before, after which weights are compared.
SHORT = 10


@dataclass(frozen=True)
class Job:
    """``rows``: of each executor in an iteration. ``seconds``: about so many for the iterations of a long run."""

    networks: Sequence[str]
    executors: int
    rows: int
    seconds: float
    repeats: int


def measured(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    """For each network and system: ``samples``, seconds of an iteration; ``verified``, whether both have the same weights in
    the end; ``parameters``; of ibatch, ``batching``: how layers travelled."""
    sc = spark.sparkContext
    sc.setLogLevel("ERROR")
    start_engine(sc, job.executors, 1)
    return [row for network in job.networks for row in _compared(sc, job, network)]


def _compared(sc: SparkContext, job: Job, network: str) -> list[dict[str, Any]]:
    from sparkdl_comm.bigdl.networks import NETWORKS

    start = [array.copy() for array in NETWORKS[network]().get_weights()]
    runs = {system: _Runs(sc, job, network, system, start) for system in SYSTEMS}
    ends = {system: run.weights(SHORT) for system, run in runs.items()}
    gone = max(np.abs(end - begin).max() for end, begin in zip(ends["bigdl"], start, strict=True))
    apart = max(np.abs(ours - theirs).max() for ours, theirs in zip(ends["ibatch"], ends["bigdl"], strict=True))
    verified = bool(gone > 0 and apart <= TOLERANCE * gone)
    rows = []
    for system, run in runs.items():
        row = {"network": network, "system": system, "executors": job.executors, "verified": verified}
        row |= {"parameters": sum(array.size for array in start), "samples": run.iteration_seconds()}
        row |= {"apart": float(apart / gone), "batching": run.batching()}
        rows.append(row)
    return rows


class _Runs:
    def __init__(self, sc: SparkContext, job: Job, network: str, system: str, start: list[np.ndarray]) -> None:
        self._sc, self._job, self._network, self._system, self._start = sc, job, network, system, start
        self._last: Any = None

    def weights(self, iterations: int) -> list[np.ndarray]:
        """What so many iterations make of the first ones."""
        trained: list[np.ndarray] = self._optimizer(iterations)().get_weights()
        return trained

    def iteration_seconds(self) -> list[float]:
        rough = (self._seconds(3 * SHORT) - self._seconds(SHORT)) / (2 * SHORT)
        more = max(SHORT, round(self._job.seconds / max(rough, 1e-4)))
        return [(self._seconds(SHORT + more) - self._seconds(SHORT)) / more for _ in range(self._job.repeats)]

    def batching(self) -> Any:
        return json.loads(self._last.batching) if self._system == "ibatch" else None

    def _seconds(self, iterations: int) -> float:
        optimize = self._optimizer(iterations)
        begun = time.perf_counter()
        optimize()
        return time.perf_counter() - begun

    def _optimizer(self, iterations: int) -> Callable[[], Any]:
        from bigdl.dllib.nn.criterion import ClassNLLCriterion
        from bigdl.dllib.optim.optimizer import SGD, DistriOptimizer, MaxIteration
        from bigdl.dllib.utils.common import Sample

        from sparkdl_comm.bigdl.networks import NETWORKS
        from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

        model = NETWORKS[self._network]()
        model.set_weights(self._start)
        count = self._job.rows * self._job.executors
        pixels, labels = digits_28x28()
        samples = [
            Sample.from_ndarray(pixel, np.array(label + 1.0))
            for pixel, label in zip(pixels[:count].numpy(), labels[:count].numpy(), strict=True)
        ]
        # In one partition: BigDL deals its rows out, and so each executor gets equally many.
        data = self._sc.parallelize(samples, 1)
        make = IBatchOptimizer if self._system == "ibatch" else DistriOptimizer
        optimizer = make(
            model, data, ClassNLLCriterion(), MaxIteration(iterations), count, SGD(learningrate=LEARNING_RATE)
        )
        if self._system == "bigdl":
            optimizer.value.setCompressType("none")
        optimizer.prepare_input()
        self._last = optimizer
        return lambda: optimizer.optimize()


if __name__ == "__main__":
    answer("bench_bigdl", Job, measured)
