"""Rows per second of `TorchModel.transform` beside a hand-written pandas_udf with the same model, in one run.

    python python/benchmarks transform --json

Both score the same cached DataFrame and add the same columns; the result is consumed whole by Spark's noop sink. The
hand-written functions are what one finds in tutorials: an iterator of Series, the model from a broadcast, one forward pass
per Arrow batch (`pandas_udf`), and the same in passes of as many rows as transform takes (`pandas_udf chunks`). They add
`prediction`, as `transform` does here; its ratio is to the faster of the two. `transform all` adds `rawPrediction` and
`probability` too, ML Vectors; its ratio is to `pandas_udf all`, in chunks, which returns a struct of arrays that
array_to_vector makes Vectors of.

Verified: in every timed run, a checksum over all rows' ids and predictions is that of a forward pass in this process.
"""

from __future__ import annotations

import functools
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from benchmarks.applications import local_cluster
from benchmarks.command import Note
from lab.arguments import names_of
from lab.bench import Row, measure, versions
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf
from sklearn.datasets import load_breast_cancer

from sparkdl_comm import TorchModel
from sparkdl_comm.networks import SmallLeNet, digits_28x28, parameter_count

#: What each way of ours is compared with: the fastest of these.
HAND_WRITTEN = {"transform": ("pandas_udf", "pandas_udf chunks"), "transform all": ("pandas_udf all",)}


def repeated(spark: SparkSession, features: np.ndarray, rows: int, executors: int) -> DataFrame:
    """The rows of `features` again and again: `id`, and `features` as array<float>."""
    table = pd.DataFrame({"row": range(len(features)), "features": list(features)})
    known = F.broadcast(spark.createDataFrame(table, "row long, features array<float>"))
    ids = spark.range(0, rows, numPartitions=2 * executors).withColumn("row", F.col("id") % len(features))
    return ids.join(known, "row").select("id", "features")


def lenet(spark: SparkSession, rows: int, executors: int) -> tuple[torch.nn.Module, np.ndarray, DataFrame]:
    """Handwritten digits, as arrays of 784 pixels."""
    torch.manual_seed(1)
    pixels = digits_28x28()[0].numpy()
    return SmallLeNet(), pixels, repeated(spark, pixels, rows, executors)


def tabular(spark: SparkSession, rows: int, executors: int) -> tuple[torch.nn.Module, np.ndarray, DataFrame]:
    """The 30 measurements of the breast cancer data, assembled to a Vector."""
    torch.manual_seed(1)
    values = load_breast_cancer().data
    values = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    network = torch.nn.Sequential(
        *(torch.nn.Linear(30, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    )
    names = [f"x{index}" for index in range(30)]
    flat = repeated(spark, values, rows, executors).select(
        "id", *(F.col("features")[i].alias(n) for i, n in enumerate(names))
    )
    return (
        network,
        values,
        VectorAssembler(inputCols=names, outputCol="features").transform(flat).select("id", "features"),
    )


#: What is scored, and how many rows of it, as a multiple of `--rows`.
CASES = {"lenet": (lenet, 1), "tabular": (tabular, 10)}


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


def hand_written_all(spark: SparkSession, module: torch.nn.Module, chunk: int) -> Callable[[Column], Column]:
    shared = spark.sparkContext.broadcast(module)

    @pandas_udf("prediction double, rawPrediction array<double>, probability array<double>")
    def predict(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        network = shared.value.eval()
        with torch.inference_mode():
            for batch in batches:
                inputs = torch.from_numpy(np.stack(batch.to_numpy()))
                raw = torch.cat([network(part) for part in inputs.split(chunk)]).double()
                yield pd.DataFrame(
                    {
                        "prediction": raw.argmax(1).double().numpy(),
                        "rawPrediction": list(raw.numpy()),
                        "probability": list(raw.softmax(1).numpy()),
                    }
                )

    return predict


def with_all(data: DataFrame, scored: Column) -> DataFrame:
    """The columns of a struct, as Spark ML has them."""
    vectors = [array_to_vector(f"scored.{name}").alias(name) for name in ("rawPrediction", "probability")]
    return data.withColumn("scored", scored).select(*data.columns, *vectors, "scored.prediction")


def scoring(module: torch.nn.Module, data: DataFrame, chunk: int) -> dict[str, Callable[[], DataFrame]]:
    """What makes the scored DataFrame, by name."""
    model = TorchModel(module, classification=True, activation="softmax").setPredictBatchSize(chunk)
    alone = model.copy().setRawPredictionCol("").setProbabilityCol("")
    vectors = data.schema["features"].dataType.typeName() != "array"
    features = vector_to_array("features", "float32") if vectors else F.col("features")
    spark = data.sparkSession
    whole, chunks = (hand_written(spark, module, size)(features) for size in (None, chunk))
    everything = hand_written_all(spark, module, chunk)(features)
    return {
        "pandas_udf": lambda: data.withColumn("prediction", whole),
        "pandas_udf chunks": lambda: data.withColumn("prediction", chunks),
        "transform": lambda: alone.transform(data),
        "pandas_udf all": lambda: with_all(data, everything),
        "transform all": lambda: model.transform(data),
    }


def score(make: Callable[[], DataFrame]) -> tuple[float, int, int]:
    """Seconds, and the count and the checksum of what was scored."""
    seen = Observation()
    checksum = F.sum(F.xxhash64("id", "prediction") % F.lit(1 << 31))
    scored = make().observe(seen, F.count("*").alias("rows"), checksum.alias("checksum"))
    start = time.perf_counter()
    scored.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start, seen.get["rows"], seen.get["checksum"]


def bench(spark: SparkSession, case: str, options: Namespace) -> list[Row]:
    make, factor = CASES[case]
    count = options.rows * factor
    module, features, data = make(spark, count, options.executors)
    data = data.cache()
    with torch.inference_mode():
        classes = module.eval()(torch.from_numpy(features)).argmax(1).double().tolist()
    answers = spark.createDataFrame(enumerate(classes), "row long, prediction double")
    known = spark.range(count).withColumn("row", F.col("id") % len(features)).join(answers, "row")
    _, _, expected = score(lambda: known)

    ways = scoring(module, data, options.chunk)
    runs = measure(
        {name: functools.partial(score, way) for name, way in ways.items()},
        warmup=options.warmup,
        repeats=options.repeats,
    )
    medians = {name: statistics.median(seconds for seconds, _, _ in done) for name, done in runs.items()}
    by_hand = {name: min(medians[hand] for hand in hands) for name, hands in HAND_WRITTEN.items()}
    data.unpersist()
    return [
        Row(
            suite="transform",
            case=case,
            algorithm=name,
            topology="loopback",
            rate_mbit=None,
            world=options.executors,
            bytes=count * features.shape[1] * 4,
            samples=[seconds for seconds, _, _ in done],
            verified=all((rows, checksum) == (count, expected) for _, rows, checksum in done),
            versions=versions("pyspark", "torch", "pandas", "pyarrow"),
            extra={
                "rows": count,
                "rows_per_second": count / medians[name],
                "parameters": parameter_count(module),
                **({"ratio_to_hand_written": by_hand[name] / medians[name]} if name in by_hand else {}),
            },
        )
        for name, done in runs.items()
    ]


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    arrow = {"spark.sql.execution.arrow.pyspark.enabled": "true"}
    spark = local_cluster("bench_transform", options.executors, 2048, arrow)
    for case in options.cases:
        yield from bench(spark, case, options)
    spark.stop()


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000, help="images to score; ten times as many tabular rows")
    parser.add_argument("--chunk", type=int, default=256, help="rows per forward pass of transform")
    parser.add_argument("--cases", type=names_of(CASES), default=",".join(CASES))
    options = parser.parse_args(words)
    if options.quick:
        options.rows, options.repeats = 4000, 1
    return options
