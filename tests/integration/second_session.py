"""A program of its own: `python second_session.py MASTER`. Does what the error of a fit without the plugin says, in the same
process. Prints one line of JSON."""

import functools
import json
import sys

import torch
from pyspark.sql import SparkSession

import sparkdl_comm
from sparkdl_comm import TorchEstimator
from sparkdl_comm.errors import PluginError
from tests.integration.nets import Small


def fit(spark: SparkSession) -> sparkdl_comm.TorchModel:
    spark.sparkContext.setLogLevel("ERROR")
    rows = [([float(index % 7 == column) for column in range(28)], index % 7) for index in range(20)]
    estimator = TorchEstimator(
        model=Small,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        batchSize=20,
        maxIter=1,
        num_workers=1,
        strategy="ps",
    )
    return estimator.fit(spark.createDataFrame(rows, "features array<float>, label int"))


def main(master: str) -> None:
    conf = {"spark.ui.enabled": "false", "spark.sparkdl.comm.progress": "false"}
    spark = SparkSession.builder.master(master).config(map=conf).getOrCreate()
    try:
        fit(spark)
    except PluginError as error:
        advice = error.message
    spark.stop()
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()
    model = fit(spark)
    print("REPORT " + json.dumps({"spark": spark.version, "advice": advice, "strategy": model.summary["strategy"]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
