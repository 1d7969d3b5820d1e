"""Spark application of the benchmark `peers`: BigDL's DistriOptimizer, with float32 on the wire.

The Java property bigdl.engineType of driver and executors is the engine, mklblas or mkldnn. An iteration's time comes
from the throughput that BigDL reports. It has BigDL's two Spark jobs, and not the driver's work between iterations.
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from benchmarks.applications import answer
from benchmarks.peers.run import Job
from benchmarks.workload import INPUTS, LEARNING_RATE, nbytes, perceptron, right, rows
from bigdl.dllib.nn.criterion import MSECriterion
from bigdl.dllib.nn.layer import Input, Linear, Model, ReLU
from bigdl.dllib.optim.optimizer import SGD, DistriOptimizer, MaxIteration, TrainSummary
from bigdl.dllib.utils.common import Sample, create_spark_conf, init_engine
from pyspark import SparkContext
from pyspark.sql import SparkSession

#: mkldnn's number of the format `nc`: rows by columns.
_MATRIX = 4


def graph(hidden: int) -> Model:
    """Return the perceptron as a graph, which both engines can run."""
    layers = [layer for layer in perceptron(hidden) if isinstance(layer, torch.nn.Linear)]
    weights = [[layer.weight.detach().numpy(), layer.bias.detach().numpy()] for layer in layers]
    first, second = Linear(INPUTS, hidden), Linear(hidden, 1)
    first.set_weights(weights[0])
    second.set_weights(weights[1])
    begin = Input()
    model = Model([begin], [second(ReLU()(first(begin)))])
    # Without these formats mkldnn expects images.
    model.set_input_formats([_MATRIX])
    model.set_output_formats([_MATRIX])
    return model


def trained(sc: SparkContext, job: Job, hidden: int) -> dict[str, object]:
    count = job.rows * job.ranks
    inputs, targets = rows(count)
    samples = [Sample.from_ndarray(features, target) for features, target in zip(inputs, targets[:, None], strict=True)]
    model = graph(hidden)
    # BigDL deals out the rows of one partition, so each host gets the same number.
    data = sc.parallelize(samples, 1)
    optimizer = DistriOptimizer(
        model, data, MSECriterion(), MaxIteration(job.iterations), count, SGD(learningrate=LEARNING_RATE)
    )
    optimizer.value.setCompressType("none")
    with tempfile.TemporaryDirectory(prefix="sparkdl-peers-") as folder:
        summary = TrainSummary(folder, "peer")
        optimizer.set_train_summary(summary)
        done = optimizer.optimize()
        throughput = np.array(summary.read_scalar("Throughput"))[:, 1]
    seconds = (count / throughput).reshape(-1, job.steps).mean(axis=1)
    result = perceptron(hidden)
    for parameter, array in zip(result.parameters(), done.get_weights(), strict=True):
        parameter.data.copy_(torch.from_numpy(array))
    verified = right(result, hidden, count, job.iterations)
    return {"bytes": nbytes(hidden), "samples": seconds[job.warmup :].tolist(), "verified": verified}


def results(spark: SparkSession, job: Job) -> list[dict[str, object]]:
    spark.sparkContext.setLogLevel("WARN")
    init_engine()
    return [trained(spark.sparkContext, job, hidden) for hidden in job.models]


if __name__ == "__main__":
    SparkContext(appName="BigDL", conf=create_spark_conf())
    answer("BigDL", Job, results)
