"""Which rows a rank gets depends on what is in them: not on files, partitions, executors, or whether it is a second time."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm.errors import InputError
from tests.integration.nets import Random, Wide, floats
from tests.integration.test_training import fit, frame, same_bits
from tests.slow import slow

SETTINGS = {"model": Random, "batch": 20, "epochs": 3, "num_workers": 2, "strategy": "gloo"}


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """16 files, each with a row of its own that is there several times."""
    path = str(tmp_path_factory.mktemp("dealing") / "files")
    data = frame(spark).withColumn("w", F.col("features")[3] + 5).withColumn("held", F.col("features")[4] > 1)
    data.union(data.limit(12)).union(data.limit(5)).repartition(16).write.parquet(path)
    return spark.read.parquet(path)


@pytest.mark.parametrize(
    "settings",
    [slow({"validationFraction": 0.3}), {"weightCol": "w", "validationIndicatorCol": "held"}],
    ids=["fraction", "indicator"],
)
def test_the_same_bits_from_any_split_of_the_input(files: DataFrame, settings: dict[str, str]) -> None:
    whole = fit(files, **SETTINGS, **settings)
    for split in (files.repartition(1), files.repartition(7)):
        again = fit(split, **SETTINGS, **settings)
        assert same_bits(again, whole)
        assert [row["loss"] for row in again.history] == [row["loss"] for row in whole.history]
        assert [row.get("val_loss") for row in again.history] == [row.get("val_loss") for row in whole.history]


def test_the_same_bits_whichever_vectors_come_first(spark: SparkSession) -> None:
    """Four that store most of their elements, then many that store few, and the other way around."""
    random = np.random.default_rng(2)
    rows = [(Vectors.sparse(300, range(280), random.normal(size=280).tolist()), number % 2) for number in range(4)]
    rows += [(Vectors.sparse(300, {number: 1.0, 299: 2.0}), number % 2) for number in range(40)]
    settings = {**SETTINGS, "model": Wide, "validationFraction": 0.3}
    first, last = (fit(spark.createDataFrame(given, ["features", "label"]), **settings) for given in (rows, rows[::-1]))
    shuffled = fit(spark.createDataFrame(rows, ["features", "label"]).orderBy(F.rand(3)), **settings)
    for other in (last, shuffled):
        assert same_bits(first, other)
        assert [row["val_loss"] for row in other.history] == [row["val_loss"] for row in first.history]


@pytest.mark.parametrize("kind", ["vector", "binary", "nested"])
@pytest.mark.slow
def test_any_type_of_column(spark: SparkSession, files: DataFrame, kind: str) -> None:
    settings = {**SETTINGS, "epochs": 1}
    if kind == "vector":
        files = files.select(array_to_vector("features").alias("features"), "label")
    elif kind == "nested":
        files = files.select(F.array("features").alias("features"), "label")
        settings["inputShapes"] = [28]
    else:
        rows = [(np.float32(row["features"]).tobytes(), row["label"]) for row in files.collect()]
        files = spark.createDataFrame(rows, "features binary, label long")
        settings["decode"] = floats
    assert same_bits(fit(files.repartition(1), **settings), fit(files.repartition(7), **settings))


@pytest.mark.slow
def test_every_row_is_one_ranks_however_few_there_are(spark: SparkSession) -> None:
    data = frame(spark, 8)
    model = fit(data, epochs=2, num_workers=3, batch=4)
    assert (model.summary["rows"], model.summary["iterations"]) == (8, 4)
    assert same_bits(fit(data.repartition(5), epochs=2, num_workers=3, batch=4), model)


@pytest.mark.slow
def test_many_equal_rows_are_told(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    data = spark.range(600).select(F.array_repeat(F.lit(1.0), 28).alias("features"), F.lit(0).alias("label"))
    with caplog.at_level(logging.WARNING):
        fit(data, epochs=1)
    assert "has 600 of the 600 rows, and the others wait for it" in caplog.text
    merged = data.groupBy("features", "label").agg(F.count("*").alias("n"))  # as it says
    assert fit(merged, epochs=1, weightCol="n").summary["rows"] == 1


def drawn(spark: SparkSession) -> DataFrame:
    return frame(spark).withColumn("features", F.transform("features", lambda x: (x + F.rand()).cast("float")))


@pytest.mark.slow
def test_rows_that_are_other_ones_each_time(spark: SparkSession, tmp_path: Path) -> None:
    """The error, and its advice."""
    settings = {**SETTINGS, "epochs": 1, "checkpointInterval": 2}
    there = {**settings, "checkpointDir": str(tmp_path / "drawn")}
    fit(drawn(spark), **there)
    with pytest.raises(InputError, match=r"ranks \[0, 1\] of 2 have other rows .* Write the DataFrame to a table once"):
        fit(drawn(spark), resume=True, **there)
    there["checkpointDir"] = str(tmp_path / "written")
    path = str(tmp_path / "rows")
    drawn(spark).write.parquet(path)
    fit(spark.read.parquet(path), **there)
    assert fit(spark.read.parquet(path), resume=True, **there).summary["resumed_at"] > 0
    there["checkpointDir"] = str(tmp_path / "checkpointed")
    spark.sparkContext.setCheckpointDir(str(tmp_path / "spark"))
    kept = drawn(spark).checkpoint()
    fit(kept, **there)
    assert fit(kept, resume=True, **there).summary["resumed_at"] > 0
