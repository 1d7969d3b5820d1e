"""A regression on tabular columns in a Spark ML Pipeline: VectorAssembler, StandardScaler, a small network.

    spark-submit --master 'local[2]' python/examples/tabular_regression.py

The data are scikit-learn's diabetes data: ten measurements of 442 patients, and how far the disease went in the year after.
The same Pipeline with a linear regression of Spark ML serves as comparison.
"""

from __future__ import annotations

import functools

import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes
from torch import nn

import sparkdl_comm
from sparkdl_comm import TorchEstimator


def network(width: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.constant_(model[2].bias, 150.0)  # about the mean of the target, from where it need not climb
    return model


def main() -> None:
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()

    diabetes = load_diabetes(as_frame=True, scaled=False)
    data = spark.createDataFrame(diabetes.frame.astype("float64"))
    train, test = data.randomSplit([0.8, 0.2], seed=1)

    prepare = [
        VectorAssembler(inputCols=diabetes.feature_names, outputCol="measured"),
        StandardScaler(inputCol="measured", outputCol="features", withMean=True),
    ]
    estimator = TorchEstimator(
        model=functools.partial(network, len(diabetes.feature_names)),
        loss="MSELoss",
        optimizer=functools.partial(torch.optim.Adam, lr=0.02, weight_decay=0.1),
        labelCol="target",
        batchSize=64,
        maxIter=25,
        seed=1,
    )
    model = Pipeline(stages=[*prepare, estimator]).fit(train)
    linear = Pipeline(stages=[*prepare, LinearRegression(labelCol="target")]).fit(train)

    evaluator = RegressionEvaluator(labelCol="target", metricName="r2")
    for name, trained in (("network", model), ("linear", linear)):
        print(f"{name}: r2 {evaluator.evaluate(trained.transform(test)):.3f}")


if __name__ == "__main__":
    main()
