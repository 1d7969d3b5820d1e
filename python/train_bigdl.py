"""Trains BigDL's LeNet-5 on scikit-learn's handwritten digits with IBatchOptimizer, on Spark executors. `make demo-bigdl` runs
it.

    PYTHONPATH=build/bigdl python python/train_bigdl.py --executors 3 --output DIR

Without a master in Spark's conf it starts local-cluster here. Submitted to a cluster, the application needs the settings of
``sparkdl_comm.bigdl.installation.spark_conf()``. Trains, saves the model in BigDL's format, loads it again, and
scores the test set with it. Prints a summary and writes it to DIR/summary.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sparkdl_comm.bigdl import installation
from sparkdl_comm.bigdl.engine import start_engine
from sparkdl_comm.networks import digits_28x28

TEST_ROWS = 360
SPLIT_SEED = 1998


def samples(sc: SparkContext) -> tuple[Any, Any]:
    """Train and test set, RDDs of BigDL's ``Sample``; the same split every time. BigDL counts classes from 1."""
    from bigdl.dllib.utils.common import Sample

    pixels, labels = (tensor.numpy() for tensor in digits_28x28())
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))

    def rows(chosen: np.ndarray) -> Any:
        return sc.parallelize([Sample.from_ndarray(pixels[row], np.array(labels[row] + 1.0)) for row in chosen], 1)

    return rows(order[TEST_ROWS:]), rows(order[:TEST_ROWS])


def train(sc: SparkContext, options: argparse.Namespace) -> dict[str, Any]:
    from bigdl.dllib.nn.criterion import ClassNLLCriterion
    from bigdl.dllib.nn.layer import Model
    from bigdl.dllib.optim.optimizer import Adam, MaxEpoch, Top1Accuracy, TrainSummary

    from sparkdl_comm.bigdl.networks import lenet5
    from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

    batch = options.rows * options.executors
    learn, test = samples(sc)
    network = lenet5()
    optimizer = IBatchOptimizer(
        network,
        learn,
        ClassNLLCriterion(),
        MaxEpoch(options.epochs),
        batch,
        Adam(learningrate=options.learning_rate),
    )
    with tempfile.TemporaryDirectory(prefix="sparkdl-bigdl-") as folder:
        progress = TrainSummary(folder, "demo")
        optimizer.set_train_summary(progress)
        begun = time.perf_counter()
        trained = optimizer.optimize()
        seconds = time.perf_counter() - begun
        rates = np.array(progress.read_scalar("Throughput"))[:, 1]
    saved = options.output / "model"
    saved.mkdir(parents=True, exist_ok=True)
    trained.saveModel(str(saved / "model.bigdl"), str(saved / "model.bin"), True)
    again = Model.loadModel(str(saved / "model.bigdl"), str(saved / "model.bin"))
    accuracy = again.evaluate(test, batch, [Top1Accuracy()])[0].result
    iteration = statistics.median(batch / rates)
    return {
        "strategy": "ps",
        "spark_version": sc.version,
        "executors": options.executors,
        "iterations": len(rates),
        "accuracy": accuracy,
        "seconds_per_iteration": iteration,
        "iterations_per_second": 1 / iteration,
        "parameters": sum(array.size for array in trained.get_weights()),
        "seconds": seconds,
        "batching": json.loads(optimizer.batching),
    }


def session(executors: int) -> SparkSession:
    conf = installation.spark_conf() | {
        "spark.executor.memory": "2048m",
        "spark.ui.showConsoleProgress": "false",
    }
    if "spark.master" not in dict(SparkConf().getAll()):
        conf["spark.master"] = f"local-cluster[{executors},1,2048]"
    spark = SparkSession.builder.appName("sparkdl_comm demo, BigDL").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def show(summary: dict[str, Any]) -> None:
    print(
        f"\nBigDL's LeNet-5, {summary['parameters']:,} parameters, IBatchOptimizer, Spark {summary['spark_version']},"
        f" {summary['executors']} executors\n"
        f"  test accuracy        {summary['accuracy']:.4f} (of the saved model, loaded again)\n"
        f"  iterations           {summary['iterations']}, {summary['iterations_per_second']:.1f} per second\n"
        f"  time per iteration   {summary['seconds_per_iteration'] * 1e3:.1f} ms\n"
        f"  whole training       {summary['seconds']:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="directory for the model and summary.json")
    parser.add_argument("--executors", type=int, required=True, help="of the application, with a core each")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=32, help="of each executor in an iteration")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    spark = session(options.executors)
    start_engine(spark.sparkContext, options.executors, 1)
    summary = train(spark.sparkContext, options)
    spark.stop()
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    show(summary)


if __name__ == "__main__":
    main()
