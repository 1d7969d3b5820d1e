"""Trains the paper's LeNet-5 on scikit-learn's handwritten digits, on Spark executors. `make demo` runs it.

    spark-submit --jars sparkdl-comm-….jar --conf spark.plugins=sparkdl.comm.CommPlugin python/train.py --output DIR

Trains, saves the model, stops Spark, and scores the test set with the saved model in a new session. Prints a summary and
writes it to DIR/summary.json.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.networks import LeNet5, digits_28x28, parameter_count

TEST_ROWS = 360
SPLIT_SEED = 1998


def digits(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Train and test set, with columns ``features`` (array<float>, 784) and ``label``; the same split every time."""
    pixels, labels = digits_28x28()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))

    def frame(rows: np.ndarray) -> DataFrame:
        table = pd.DataFrame({"features": list(pixels[rows].numpy()), "label": labels[rows].numpy()})
        return spark.createDataFrame(table, "features array<float>, label long")

    return frame(order[TEST_ROWS:]), frame(order[:TEST_ROWS])


def accuracy(model: TorchModel, test: DataFrame) -> float:
    predictions = model.transform(test).withColumn("label", F.col("label").cast("double"))
    return MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions)


def session() -> SparkSession:
    builder = SparkSession.builder.appName("sparkdl_comm demo")
    return builder.config("spark.sql.execution.arrow.pyspark.enabled", "true").getOrCreate()


def show(summary: dict[str, Any]) -> None:
    phases = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in summary["phases"].items())
    moved = ", ".join(f"{name} {count / 1e6:.0f} MB" for name, count in summary["bytes"].items())
    print(
        f"\nLeNet-5, {parameter_count(LeNet5()):,} parameters, strategy {summary['strategy']}, Spark"
        f" {summary['spark_version']}, {summary['executors']} executors\n"
        f"  test accuracy        {summary['accuracy']:.4f} (of the saved model, in a new session)\n"
        f"  iterations           {summary['iterations']}, {summary['iterations_per_second']:.1f} per second\n"
        f"  time per iteration   {summary['seconds_per_iteration'] * 1e3:.1f} ms\n"
        f"    by phase, ms       {phases}\n"
        f"  over the network     {moved} (all ranks, whole run)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="directory for the model and summary.json")
    parser.add_argument("--num-workers", type=int, help="ranks; default: one per slot of the cluster")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=96, help="rows per step over all ranks")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()

    spark = session()
    train, test = digits(spark)
    estimator = TorchEstimator(
        model=LeNet5,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.Adam, lr=options.learning_rate),
        batchSize=options.batch_size,
        maxIter=options.epochs,
        seed=1,
    )
    if options.num_workers:
        estimator.setNumWorkers(options.num_workers)
    model = estimator.fit(train)
    saved = (options.output / "model").resolve().as_uri()
    model.write().overwrite().save(saved)
    version = spark.version
    spark.stop()

    spark = session()
    _, test = digits(spark)
    trained = model.summary
    summary = {
        "strategy": trained["strategy"],
        "spark_version": version,
        "executors": trained["world"],
        "iterations": trained["iterations"],
        "accuracy": accuracy(TorchModel.load(saved), test),
        "seconds_per_iteration": trained["seconds_per_iteration"],
        "iterations_per_second": trained["iterations_per_second"],
        "phases": trained["phases"],
        "bytes": trained["bytes"],
    }
    spark.stop()
    (options.output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    show(summary)


if __name__ == "__main__":
    main()
