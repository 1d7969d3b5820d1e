"""A program of test_bigdl.py: two executors train a model whose blocks have 3.4 MiB, which travel as chunks.

    python bigdl_large.py FOLDER

Writes FOLDER/found.json: how far the weights are from those of the same steps in NumPy (``apart``) and how far these have gone
(``gone``), the bytes of a block of parameters (``block``), and the buckets of the parameters (``buckets``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from benchmarks.applications import local_cluster

from sparkdl_comm.bigdl import installation
from sparkdl_comm.bigdl.installation import start_engine

EXECUTORS = 2
EXECUTOR_MIB = 1024
WIDTH = 600
LAYERS = 5
ROWS = 8
ITERATIONS = 60
RATE = 0.5


def trained(weights: list[np.ndarray], inputs: np.ndarray, targets: np.ndarray) -> list[np.ndarray]:
    """Return what gradient descent on the mean squared error makes of the layers' ``weights``: matrix, bias, matrix, ..."""
    weights = [array.copy() for array in weights]
    for _ in range(ITERATIONS):
        outputs = [inputs]
        for matrix, bias in zip(weights[::2], weights[1::2], strict=True):
            outputs.append(outputs[-1] @ matrix.T + bias)
        gradient = 2 * (outputs[-1] - targets) / targets.size
        for layer in reversed(range(LAYERS)):
            before = gradient @ weights[2 * layer]
            weights[2 * layer] -= RATE * gradient.T @ outputs[layer]
            weights[2 * layer + 1] -= RATE * gradient.sum(axis=0)
            gradient = before
    return weights


def main() -> None:
    # A restart would hide that the tasks fail once they are over.
    conf = {"spark.sparkdl.comm.timeout": "30s", "spark.sparkdl.comm.maxRestarts": "0"}
    conf["spark.sparkdl.comm.ps.batching"] = "whole"
    spark = local_cluster("bigdl_large", EXECUTORS, EXECUTOR_MIB, installation.spark_conf() | conf)
    start_engine(spark.sparkContext, EXECUTORS, 1)

    from bigdl.dllib.nn.criterion import MSECriterion
    from bigdl.dllib.nn.layer import Linear, Sequential
    from bigdl.dllib.optim.optimizer import SGD, MaxIteration
    from bigdl.dllib.utils.common import Sample

    from sparkdl_comm.bigdl import IBatchOptimizer

    model = Sequential()
    for _ in range(LAYERS):
        model.add(Linear(WIDTH, WIDTH))
    start = [array.copy() for array in model.get_weights()]
    drawn = np.random.default_rng(1).normal(size=(ROWS, 2, WIDTH)).astype(np.float32)
    rows = spark.sparkContext.parallelize([Sample.from_ndarray(row, target) for row, target in drawn], 1)

    optimizer = IBatchOptimizer(model, rows, MSECriterion(), MaxIteration(ITERATIONS), ROWS, SGD(learningrate=RATE))
    ours = optimizer.optimize().get_weights()
    expected = trained(start, drawn[:, 0], drawn[:, 1])

    def furthest(others: list[np.ndarray]) -> float:
        return max(float(np.abs(one - other).max()) for one, other in zip(expected, others, strict=True))

    summary = optimizer.summary
    block = summary["bytes"]["pull"] / EXECUTORS / ITERATIONS  # each rank pulls the other's half
    found = {"apart": furthest(ours), "gone": furthest(start), "block": block}
    found["buckets"] = len(summary["batching"]["pull"]["batches"])
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
