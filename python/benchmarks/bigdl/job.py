"""Spark application of the benchmark `bigdl`: several systems train a BigDL model on the same executors.

All rows of the data are one batch, so each iteration has the same rows. The time of an iteration comes from the
difference between a long run and a short one. It includes the work between iterations. It excludes set-up, the end, and
the iterations in which ``ibatch`` measures, plans and tries its plan.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.applications import answer
from benchmarks.case import share_of
from lab.bench import measure
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkdl_comm.bigdl.engine import start_engine
from sparkdl_comm.networks import digits_28x28

#: BigDL's own optimizer. The other systems are ``IBatchOptimizer`` with a policy of ``spark.sparkdl.comm.ps.batching``.
BIGDL = "bigdl"
LEARNING_RATE = 0.05
#: Largest difference to the first system's weights, as a share of the largest change of these in training.
TOLERANCE = 1e-3
PROFILE_ITERATIONS = 5
#: Iterations before weights are compared. Differences by rounding grow with the iterations.
COMPARED = 12
#: Iterations of the short run, after which ``ibatch`` is settled. It measures a profile and tries the plan, ``layerwise``
#: and, where blocks are small, ``whole``. Pulls change one iteration later, pushes two.
SHORT = 4 * PROFILE_ITERATIONS + 3


@dataclass(frozen=True)
class Job:
    """Job of the application.

    :param network: a name in ``sparkdl_comm.bigdl.networks``, or of an emulated network's profile.
    :param forward: seconds of forward of an emulated network, whose layers wait. None: the network computes.
    :param rows: rows of each executor in an iteration.
    :param iterations: iterations that a long run has more than a short one. None: as many as take about ``seconds``.
    """

    network: str
    forward: float | None
    systems: Sequence[str]
    executors: int
    rows: int
    iterations: int | None
    seconds: float
    repeats: int


@dataclass(frozen=True)
class Training:
    """A run: its seconds, its final weights, and the optimizer's summary, which is empty for BigDL's own."""

    iterations: int
    seconds: float
    weights: list[np.ndarray]
    summary: dict[str, Any]

    def since(self, short: Training, field: str) -> dict[str, float]:
        """Return the summary's means per iteration in ``field``, over the iterations that ``short`` did not do."""

        def total(of: Training, name: str) -> float:
            return float(of.summary[field][name]) * of.iterations

        more = self.iterations - short.iterations
        return {name: (total(self, name) - total(short, name)) / more for name in self.summary.get(field, {})}


@dataclass(frozen=True)
class Sample:
    """Seconds of an iteration, of its phases and of its overlapping parts."""

    seconds: float
    phases: dict[str, float]
    overlap: dict[str, float]
    batching: dict[str, Any]


def measured(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    """Return a row for each system.

    - ``samples``: seconds of an iteration. ``phases``, ``overlap``: medians of the fields of
      ``IBatchOptimizer.summary``.
    - ``verified``: the final weights are those of the first system. ``apart``: their relative difference.
    - ``batches``: number of batches of layers. ``kept``: the policy that cut them. ``parameters``: their number.
    """
    sc = spark.sparkContext
    sc.setLogLevel("ERROR")
    start_engine(sc, job.executors, 1)
    runs = {system: _Runs(sc, job, system) for system in job.systems}
    start = _weights(_network(job))
    ends = {system: run.train(start, COMPARED).weights for system, run in runs.items()}
    first = ends[job.systems[0]]
    gone = max(np.abs(end - begin).max() for end, begin in zip(first, start, strict=True))
    samples = measure(
        {system: functools.partial(run.sample, start, run.length(start)) for system, run in runs.items()},
        warmup=0,
        repeats=job.repeats,
    )
    rows = []
    for system, found in samples.items():
        apart = max(np.abs(one - other).max() for one, other in zip(ends[system], first, strict=True))
        row = {"network": job.network, "system": system, "executors": job.executors, "apart": float(apart / gone)}
        row |= {"verified": bool(gone > 0 and apart <= TOLERANCE * gone)}
        row |= {"parameters": sum(array.size for array in start), "samples": [each.seconds for each in found]}
        row |= {"phases": _medians([each.phases for each in found])}
        row |= {"overlap": _medians([each.overlap for each in found])}
        row |= {"batches": {name: len(plan["batches"]) for name, plan in found[-1].batching.items()}}
        row |= {"kept": {name: plan["kept"] for name, plan in found[-1].batching.items()}}
        rows.append(row)
    return rows


def _medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _network(job: Job) -> Any:
    from sparkdl_comm.bigdl.networks import NETWORKS, emulated

    return NETWORKS[job.network]() if job.forward is None else emulated(share_of(job.network, job.forward))


def _weights(network: Any) -> list[np.ndarray]:
    return [array.copy() for array in network.get_weights()]


class _Runs:
    def __init__(self, sc: SparkContext, job: Job, system: str) -> None:
        self._sc, self._job, self._system = sc, job, system

    def length(self, start: list[np.ndarray]) -> int:
        """Return the iterations that a long run has more than a short one."""
        if self._job.iterations:
            return self._job.iterations
        rough = self.sample(start, SHORT).seconds
        return max(SHORT, round(self._job.seconds / max(rough, 1e-4)))

    def sample(self, start: list[np.ndarray], more: int) -> Sample:
        long, short = self.train(start, SHORT + more), self.train(start, SHORT)
        seconds = (long.seconds - short.seconds) / more
        batching = long.summary.get("batching", {})
        return Sample(seconds, long.since(short, "phases"), long.since(short, "overlap"), batching)

    def train(self, start: list[np.ndarray], iterations: int) -> Training:
        """Train from the weights ``start``."""
        optimizer = self._optimizer(start, iterations)
        begun = time.perf_counter()
        trained = optimizer.optimize()
        seconds = time.perf_counter() - begun
        summary = {} if self._system == BIGDL else optimizer.summary
        return Training(iterations, seconds, _weights(trained), summary)

    def _optimizer(self, start: list[np.ndarray], iterations: int) -> Any:
        from bigdl.dllib.nn.criterion import ClassNLLCriterion
        from bigdl.dllib.optim.optimizer import SGD, DistriOptimizer, MaxIteration
        from bigdl.dllib.utils.common import Sample as Row

        from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

        model = _network(self._job)
        model.set_weights(start)
        count = self._job.rows * self._job.executors
        pixels, labels = digits_28x28()
        rows = [
            Row.from_ndarray(pixel, np.array(label + 1.0))
            for pixel, label in zip(pixels[:count].numpy(), labels[:count].numpy(), strict=True)
        ]
        # BigDL deals out the rows of one partition, so each executor gets the same number.
        data = self._sc.parallelize(rows, 1)
        make = DistriOptimizer if self._system == BIGDL else IBatchOptimizer
        optimizer = make(
            model, data, ClassNLLCriterion(), MaxIteration(iterations), count, SGD(learningrate=LEARNING_RATE)
        )
        if self._system == BIGDL:
            optimizer.value.setCompressType("none")
        else:
            optimizer.set_conf("spark.sparkdl.comm.ps.batching", self._system)
            optimizer.set_conf("spark.sparkdl.comm.ps.profileIterations", str(PROFILE_ITERATIONS))
        optimizer.prepare_input()
        return optimizer


if __name__ == "__main__":
    answer("bench_bigdl", Job, measured)
