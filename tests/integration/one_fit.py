"""A program of its own: `python one_fit.py MASTER STRATEGY RANKS [KEY=VALUE ...]`. Prints one line of JSON about a fit."""

import functools
import json
import sys
from typing import Any

import torch
from pyspark.sql import SparkSession

import sparkdl_comm
from sparkdl_comm import TorchEstimator
from tests.integration.nets import Large

OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
EPOCHS = 5


def metrics(spark: SparkSession) -> dict[str, int]:
    """The plugin's counters in the metric registry of this JVM (which is the executor, with a local master)."""
    system = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().metricsSystem()
    sources = system.getSourcesByName("plugin.sparkdl.comm.CommPlugin")
    counters = {}
    for index in range(sources.size()):
        for entry in sources.apply(index).metricRegistry().getCounters().entrySet():
            counters[entry.getKey()] = entry.getValue().getCount()
    return counters


def rows() -> list[tuple[list[float], int]]:
    random = torch.Generator().manual_seed(1)
    return [(torch.randn(28, generator=random).tolist(), index % 10) for index in range(60)]


def in_one_process() -> dict[str, torch.Tensor]:
    """The reference: every step on all rows."""
    features, labels = (torch.tensor(column) for column in zip(*rows(), strict=True))
    torch.manual_seed(3)
    module = Large()
    optimizer = OPTIMIZER(module.parameters())
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(features), labels).backward()
        optimizer.step()
    return module.state_dict()


def fit(spark: SparkSession, strategy: str, ranks: int) -> dict[str, Any]:
    """A fit, and what there is to say about it."""
    spark.sparkContext.setLogLevel("ERROR")
    data = spark.createDataFrame(rows(), "features array<float>, label int")
    estimator = TorchEstimator(
        model=Large,
        loss="CrossEntropyLoss",
        optimizer=OPTIMIZER,
        batchSize=60,
        maxIter=EPOCHS,
        num_workers=ranks,
        strategy=strategy,
        seed=3,
    )
    model = estimator.fit(data)
    reference = in_one_process()
    off = {name: (tensor - reference[name]).norm().item() for name, tensor in model.module.state_dict().items()}
    scored = model.transform(data).where("prediction = label").count()
    return {"spark": spark.version, "summary": model.summary, "off": max(off.values()), "scored": scored}


def main(master: str, strategy: str, ranks: str, *settings: str) -> None:
    conf = {"spark.master": master, "spark.ui.enabled": "false", **sparkdl_comm.spark_conf(progress=False)}
    conf |= dict(setting.split("=", 1) for setting in settings)
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    print("REPORT " + json.dumps({**fit(spark, strategy, int(ranks)), "metrics": metrics(spark)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
