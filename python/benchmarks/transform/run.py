"""Rows per second of `TorchModel.transform` beside hand-written pandas_udfs with the same model, in one run.

    python python/benchmarks transform --json

All scorers score the same cached DataFrame, and Spark's noop sink consumes the result.

- `transform` adds `prediction`.
- `pandas_udf` adds it too, as tutorials do: the model comes from a broadcast, and each Arrow batch is one forward pass.
- `pandas_udf chunks` makes passes of as many rows as `transform` does.
- `transform all` adds `rawPrediction` and `probability` too, as ML Vectors.
- `pandas_udf all` adds the same in chunks: a struct of arrays, which array_to_vector converts.

Verified: in every timed run, the checksum of all ids and predictions is that of a forward pass in this process.
"""

from __future__ import annotations

import functools
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import torch
from benchmarks.applications import local_cluster
from benchmarks.command import Note
from lab.bench import Row, measure
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf
from sklearn.datasets import load_breast_cancer

from sparkdl_comm import TorchModel
from sparkdl_comm.networks import SmallLeNet, digits_28x28

#: Executors, rows of a forward pass of transform, and by how much a quick run divides the rows.
EXECUTORS, CHUNK, QUICK = 2, 256, 5


def repeated(spark: SparkSession, features: np.ndarray, rows: int) -> DataFrame:
    """Return ``rows`` rows that repeat `features`: `id`, and `features` as array<float>."""
    table = pd.DataFrame({"row": range(len(features)), "features": list(features)})
    known = F.broadcast(spark.createDataFrame(table, "row long, features array<float>"))
    ids = spark.range(0, rows, numPartitions=2 * EXECUTORS).withColumn("row", F.col("id") % len(features))
    return ids.join(known, "row").select("id", "features")


def lenet(spark: SparkSession, rows: int) -> tuple[torch.nn.Module, np.ndarray, DataFrame]:
    """Return a network and handwritten digits, as arrays of 784 pixels."""
    torch.manual_seed(1)
    pixels = digits_28x28()[0].numpy()
    return SmallLeNet(), pixels, repeated(spark, pixels, rows)


def tabular(spark: SparkSession, rows: int) -> tuple[torch.nn.Module, np.ndarray, DataFrame]:
    """Return a network and the 30 measurements of the breast cancer data, assembled to a Vector."""
    torch.manual_seed(1)
    values = load_breast_cancer().data
    values = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    network = torch.nn.Sequential(
        *(torch.nn.Linear(30, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    )
    names = [f"x{index}" for index in range(30)]
    flat = repeated(spark, values, rows).select("id", *(F.col("features")[i].alias(n) for i, n in enumerate(names)))
    return (
        network,
        values,
        VectorAssembler(inputCols=names, outputCol="features").transform(flat).select("id", "features"),
    )


#: Networks with their data, and the number of rows to score.
CASES = {"lenet": (lenet, 20_000), "tabular": (tabular, 200_000)}


def hand_written(spark: SparkSession, module: torch.nn.Module, chunk: int | None) -> Callable[[Column], Column]:
    shared = spark.sparkContext.broadcast(module)

    @pandas_udf("double")
    def predict(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        network = shared.value.eval()
        with torch.inference_mode():
            for batch in batches:
                inputs = torch.from_numpy(np.stack(batch.to_numpy()))
                outputs = [network(part) for part in inputs.split(chunk or len(inputs))]
                yield pd.Series(torch.cat(outputs).argmax(1).double().numpy())

    return predict


def hand_written_all(spark: SparkSession, module: torch.nn.Module) -> Callable[[Column], Column]:
    shared = spark.sparkContext.broadcast(module)

    @pandas_udf("prediction double, rawPrediction array<double>, probability array<double>")
    def predict(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        network = shared.value.eval()
        with torch.inference_mode():
            for batch in batches:
                inputs = torch.from_numpy(np.stack(batch.to_numpy()))
                raw = torch.cat([network(part) for part in inputs.split(CHUNK)]).double()
                yield pd.DataFrame(
                    {
                        "prediction": raw.argmax(1).double().numpy(),
                        "rawPrediction": list(raw.numpy()),
                        "probability": list(raw.softmax(1).numpy()),
                    }
                )

    return predict


def with_all(data: DataFrame, scored: Column) -> DataFrame:
    """Return the data with the columns of the struct ``scored``, as Spark ML has them."""
    vectors = [array_to_vector(f"scored.{name}").alias(name) for name in ("rawPrediction", "probability")]
    return data.withColumn("scored", scored).select(*data.columns, *vectors, "scored.prediction")


def scoring(module: torch.nn.Module, data: DataFrame) -> dict[str, Callable[[], DataFrame]]:
    """Return functions that make the scored DataFrame, by name."""
    model = TorchModel(module, classification=True, activation="softmax").setPredictBatchSize(CHUNK)
    alone = model.copy().setRawPredictionCol("").setProbabilityCol("")
    vectors = data.schema["features"].dataType.typeName() != "array"
    features = vector_to_array("features", "float32") if vectors else F.col("features")
    spark = data.sparkSession
    whole, chunks = (hand_written(spark, module, size)(features) for size in (None, CHUNK))
    everything = hand_written_all(spark, module)(features)
    return {
        "pandas_udf": lambda: data.withColumn("prediction", whole),
        "pandas_udf chunks": lambda: data.withColumn("prediction", chunks),
        "transform": lambda: alone.transform(data),
        "pandas_udf all": lambda: with_all(data, everything),
        "transform all": lambda: model.transform(data),
    }


def score(make: Callable[[], DataFrame]) -> tuple[float, int, int]:
    """Return the seconds of scoring, and the count and the checksum of the scored rows."""
    seen = Observation()
    checksum = F.sum(F.xxhash64("id", "prediction") % F.lit(1 << 31))
    scored = make().observe(seen, F.count("*").alias("rows"), checksum.alias("checksum"))
    start = time.perf_counter()
    scored.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start, seen.get["rows"], seen.get["checksum"]


def bench(spark: SparkSession, case: str, options: Namespace) -> list[Row]:
    make, count = CASES[case]
    count //= QUICK if options.quick else 1
    module, features, data = make(spark, count)
    data = data.cache()
    with torch.inference_mode():
        classes = module.eval()(torch.from_numpy(features)).argmax(1).double().tolist()
    answers = spark.createDataFrame(enumerate(classes), "row long, prediction double")
    known = spark.range(count).withColumn("row", F.col("id") % len(features)).join(answers, "row")
    _, _, expected = score(lambda: known)

    ways = scoring(module, data)
    runs = measure(
        {name: functools.partial(score, way) for name, way in ways.items()},
        warmup=options.warmup,
        repeats=options.repeats,
    )
    data.unpersist()
    return [
        Row(
            suite="transform",
            case=case,
            algorithm=name,
            world=EXECUTORS,
            bytes=count * features.shape[1] * 4,
            samples=[seconds for seconds, _, _ in done],
            verified=all((rows, checksum) == (count, expected) for _, rows, checksum in done),
            extra={"rows": count},
        )
        for name, done in runs.items()
    ]


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    arrow = {"spark.sql.execution.arrow.pyspark.enabled": "true"}
    spark = local_cluster("bench_transform", EXECUTORS, 2048, arrow)
    for case in CASES:
        yield from bench(spark, case, options)
    spark.stop()
