"""Spark application of the benchmark `peers`: this package's TorchEstimator, with the strategy of the session's conf.

A run is a fit of `steps` iterations, each over all rows. Its time per iteration is the fit's report.
"""

from __future__ import annotations

import functools

import pandas as pd
import torch
from benchmarks.applications import answer
from benchmarks.workload import LEARNING_RATE, Job, loss, nbytes, perceptron, right, rows
from pyspark.sql import SparkSession

from sparkdl_comm import TorchEstimator
from sparkdl_comm.errors import InputError


def trained(spark: SparkSession, job: Job, hidden: int) -> dict[str, object]:
    count = job.rows * job.ranks
    inputs, targets = rows(count)
    data = spark.createDataFrame(
        pd.DataFrame({"features": list(inputs), "label": targets}), "features array<float>, label float"
    )
    estimator = TorchEstimator(
        model=functools.partial(perceptron, hidden),
        loss=loss,
        optimizer=functools.partial(torch.optim.SGD, lr=LEARNING_RATE),
        batchSize=count,
        maxIter=job.steps,
        num_workers=job.ranks,
    )
    samples, verified = [], True
    for run in range(job.warmup + job.repeats):
        model = estimator.fit(data)
        if model.summary is None or model.summary["iterations"] != job.steps:
            raise InputError(f"a fit must have {job.steps} iterations, and its summary is {model.summary}")
        if run >= job.warmup:
            samples.append(model.summary["seconds_per_iteration"])
            verified &= right(model.module, hidden, count, job.steps)
    return {"bytes": nbytes(hidden), "samples": samples, "verified": verified}


def results(spark: SparkSession, job: Job) -> list[dict[str, object]]:
    return [trained(spark, job, hidden) for hidden in job.models]


if __name__ == "__main__":
    answer("sparkdl_comm", Job, results)
