"""Rows that are wide, or that would be if they were not sparse: how many are at once in the memory of an executor."""

import functools
import warnings

import numpy as np
import pytest
import torch
from lab.settings import applied
from pyspark.ml.feature import HashingTF, VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from sparkdl_comm.errors import InputError
from sparkdl_comm.job.arrow_batches import ROWS_PER_BATCH_KEY, limit_batches, measure_columns
from sparkdl_comm.ml.model import TorchModel
from tests.integration.test_training import distance, fit

WIDTH = 1 << 18


class Bag(torch.nn.Linear):
    """Takes rows whole or sparse."""

    def __init__(self):
        super().__init__(WIDTH, 2)

    def forward(self, rows):
        return rows @ self.weight.t() + self.bias


def counts(batches):
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


@pytest.mark.slow
def test_batches_are_bounded_by_bytes_for_one_job(spark):
    wide = spark.range(0, 120, 1, 1).select(F.sequence(F.lit(1), F.lit(100_000)).alias("x"), "id")
    found = measure_columns(wide, ["x", "id"])
    assert (found["x"], found["id"]) == (800_000, 8)
    job = limit_batches(wide, sum(found.values()))
    assert [row["rows"] for row in job.mapInArrow(counts, "rows long").collect()] == [41, 41, 38]
    narrow = spark.range(0, 120, 1, 1)
    assert [row["rows"] for row in narrow.mapInArrow(counts, "rows long").collect()] == [120], "the session as it was"
    assert spark.conf.get(ROWS_PER_BATCH_KEY) == "10000"
    assert limit_batches(narrow, 16) is narrow
    wide.createOrReplaceTempView("wide")
    joined = spark.table("wide").join(narrow, "id")
    assert measure_columns(joined, ["x"])["x"] == 32 << 12, "not known without reading both sides: 256 rows a batch"


@pytest.fixture(scope="module")
def texts(spark):
    """A few words a row; each class has its own."""
    words = np.random.default_rng(3).integers(0, 40, (60, 5))
    rows = [([f"w{word + 100 * (number % 2)}" for word in row], number % 2) for number, row in enumerate(words)]
    return HashingTF(inputCol="words", outputCol="features").transform(
        spark.createDataFrame(rows, "words array<string>, label long")
    )


@pytest.mark.slow
def test_hashed_words_train_and_score_as_pairs(spark, texts):
    with applied(spark, {"data.cache": "disk"}):
        model = fit(texts, model=Bag, batch=10, epochs=4, strategy="gloo")
    assert model.summary["data"]["cache"] == "disk"
    assert model.summary["data"]["bytes"] < 200_000, "whole, they are 63 MB"
    scored = model.transform(texts).select("prediction", "label").collect()
    assert np.mean([row["prediction"] == row["label"] for row in scored]) > 0.9
    sparse = fit(texts, model=Bag, batch=10, epochs=4, strategy="gloo", inputTypes=["sparse"])
    assert distance(sparse.module.state_dict(), model.module.state_dict()) < 1e-5
    assert sparse.transform(texts).select("prediction").collect() == [(row["prediction"],) for row in scored]


class Pairs(Bag):
    """Takes only sparse rows."""

    def forward(self, rows):
        assert rows.is_sparse
        return super().forward(rows)


def test_sparse_rows_stay_pairs_after_a_shuffle(spark):
    """A sort cannot return its first rows early. So nothing is known of them when Spark sends them."""
    rows = [(Vectors.sparse(WIDTH, {number: 1.0}), number % 2) for number in range(64)]
    data = spark.createDataFrame(rows, ["features", "label"]).orderBy("label")
    with applied(spark, {"data.cache": "disk"}):
        model = fit(data, model=Pairs, batch=16, epochs=1, strategy="gloo", inputTypes=["sparse"])
        dense = fit(data, model=Bag, batch=16, epochs=1, strategy="gloo")
    for each in (model, dense):
        assert each.summary["data"]["bytes"] < 20_000, "whole, they are 67 MB"
    assert distance(model.module.state_dict(), dense.module.state_dict()) < 1e-5
    assert model.transform(data).select("prediction").count() == 64


@pytest.mark.slow
def test_first_rows_without_features_are_refused_as_others(spark):
    rows = [(None, 0)] * 4 + [(Vectors.sparse(WIDTH, {number: 1.0}), 1) for number in range(16)]
    data = spark.createDataFrame(
        rows, StructType([StructField("features", VectorUDT()), StructField("label", LongType())])
    )
    with pytest.raises(InputError, match=r"4 of 20 rows have a null \(or a null element\) in featuresCol 'features'"):
        fit(data, model=Pairs, epochs=1, strategy="gloo", inputTypes=["sparse"])
    narrow = measure_columns(data, ["features"])
    assert narrow["features"] == 32 << 12, "not known: 256 rows a batch"


@pytest.mark.slow
def test_dense_rows_take_four_bytes_a_value_after_a_shuffle(spark):
    """VectorAssembler writes their size into the metadata, but not how many elements they store."""
    names = [f"x{number}" for number in range(300)]
    table = spark.range(0, 60, 1, 4).select(
        *((F.col("id") * 300 + n).alias(name) for n, name in enumerate(names)), "id"
    )
    rows = VectorAssembler(inputCols=names, outputCol="features").transform(table)
    rows = rows.select("features", (F.col("id") % 2).alias("label")).repartition(8)
    with applied(spark, {"data.cache": "disk"}):
        model = fit(rows, model=functools.partial(torch.nn.Linear, 300, 2), epochs=1, strategy="gloo")
    assert 60 * 300 * 4 < model.summary["data"]["bytes"] < 60 * 300 * 8


def test_only_vectors_are_sparse(spark):
    data = spark.createDataFrame([([1.0, 2.0], 1)], "features array<float>, label long")
    with pytest.raises(
        InputError, match=r"inputTypes: 'sparse' is for Vectors; featuresCol 'features' is array<float>"
    ):
        fit(data, inputTypes=["sparse"])


@pytest.mark.parametrize("shape", [None, (40, 1000)])
@pytest.mark.slow
def test_transform_warns_of_wide_rows(spark, shape):
    """The first layer of a model with one input says how wide rows are, or inputShapes does."""
    width = 40_000
    layers = [] if shape is None else [torch.nn.Flatten()]
    model = TorchModel(torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)), False)
    if shape is not None:
        model.setInputShapes([list(shape)])
    data = spark.range(2).select(F.array_repeat(F.lit(1.0), width).alias("features"))
    limited = spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch", None) is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scored = model.transform(data)
        narrow = TorchModel(torch.nn.Linear(3, 1), False).transform(
            data.select(F.slice("features", 1, 3).alias("features"))
        )
    warned = [str(warning.message) for warning in caught if ROWS_PER_BATCH_KEY in str(warning.message)]
    message = (
        f"a row has up to 160000 bytes, and Spark sends 10000 rows to Python at once. Set {ROWS_PER_BATCH_KEY}=209 on"
    )
    assert warned == ([] if limited else [f"{message} this session."])
    assert scored.count() == narrow.count() == 2
