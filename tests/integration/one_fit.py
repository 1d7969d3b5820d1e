"""A program of its own: `python one_fit.py MASTER STRATEGY RANKS`. Prints one line of JSON about a fit."""

import functools
import json
import sys

import torch
from pyspark.sql import SparkSession

import sparkdl_comm
from sparkdl_comm import TorchEstimator
from tests.integration.nets import Large


def metrics(spark: SparkSession) -> dict[str, int]:
    """The plugin's counters in the metric registry of this JVM (which is the executor, with a local master)."""
    system = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().metricsSystem()
    sources = system.getSourcesByName("plugin.sparkdl.comm.CommPlugin")
    counters = {}
    for index in range(sources.size()):
        for entry in sources.apply(index).metricRegistry().getCounters().entrySet():
            counters[entry.getKey()] = entry.getValue().getCount()
    return counters


def main(master: str, strategy: str, ranks: str) -> None:
    conf = {"spark.master": master, "spark.ui.enabled": "false", **sparkdl_comm.spark_conf(progress=False)}
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    random = torch.Generator().manual_seed(1)
    rows = [(torch.randn(28, generator=random).tolist(), index % 10) for index in range(60)]
    data = spark.createDataFrame(rows, "features array<float>, label int")
    estimator = TorchEstimator(
        model=Large,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        batchSize=60,
        maxIter=5,
        num_workers=int(ranks),
        strategy=strategy,
        seed=3,
    )
    model = estimator.fit(data)
    weights = {name: tensor.double().norm().item() for name, tensor in model.module.state_dict().items()}
    scored = model.transform(data).where("prediction = label").count()
    report = {"spark": spark.version, "summary": model.summary, "weights": weights, "scored": scored}
    if master.startswith("local["):
        report["metrics"] = metrics(spark)
    print("REPORT " + json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
