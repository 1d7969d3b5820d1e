"""Train the paper's LeNet-5 on scikit-learn's handwritten digits, on Spark executors. `make demo` runs it.

    spark-submit --jars sparkdl-comm-….jar --conf spark.plugins=sparkdl.comm.CommPlugin python/train.py --output DIR

The program trains, saves the model, stops Spark, and scores the test set with the saved model in a new session. It
prints a summary and writes it to DIR/summary.json.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import torch
from demo.digits import parser, split, tell
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.networks import LeNet5, digits_28x28, parameter_count


def digits(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return the training set and the test set, with columns ``features`` (array<float>, 784) and ``label``."""
    pixels, labels = digits_28x28()

    def frame(rows: np.ndarray) -> DataFrame:
        table = pd.DataFrame({"features": list(pixels[rows].numpy()), "label": labels[rows].numpy()})
        return spark.createDataFrame(table, "features array<float>, label long")

    train, test = split(len(labels))
    return frame(train), frame(test)


def accuracy(model: TorchModel, test: DataFrame) -> float:
    predictions = model.transform(test).withColumn("label", F.col("label").cast("double"))
    return MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions)


def session() -> SparkSession:
    builder = SparkSession.builder.appName("sparkdl_comm demo")
    return builder.config("spark.sql.execution.arrow.pyspark.enabled", "true").getOrCreate()


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--num-workers", type=int, help="ranks; default: one per slot of the cluster")
    options_parser.add_argument("--batch-size", type=int, default=96, help="rows per step over all ranks")
    options = options_parser.parse_args()

    spark = session()
    train, _ = digits(spark)
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
    found = accuracy(TorchModel.load(saved), test)
    spark.stop()
    tell(f"LeNet-5, {parameter_count(LeNet5()):,} parameters", model.summary, found, version, options.output)


if __name__ == "__main__":
    main()
