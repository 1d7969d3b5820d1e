"""Rows on the executors' disks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.nets import Random
from tests.integration.test_training import fit, frame, same_bits

KEY = "spark.sparkdl.comm.data."
SETTINGS = {"model": Random, "batch": 20, "epochs": 2, "num_workers": 3, "strategy": "gloo", "validationFraction": 0.3}


@pytest.fixture
def disk(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(KEY + "cache", "disk")
    yield
    for name in ("cache", "cacheLimit"):
        spark.conf.unset(KEY + name)


def folders(spark: SparkSession) -> list[str]:
    """What ranks have left in the executors' local directories."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from sparkdl_comm.data.local_disk import LocalDisk

        for batch in batches:
            found = [path.name for path in Path(LocalDisk.of_executor(1)._root).glob("*/")]
            yield pa.RecordBatch.from_arrays([pa.array([",".join(found)] * batch.num_rows)], ["found"])

    tasks = spark.range(0, 3, 1, 3).mapInArrow(look, "found string", barrier=True)
    return sorted(name for row in tasks.collect() for name in row["found"].split(",") if name)


def as_in_memory(data: DataFrame, spark: SparkSession) -> None:
    found = fit(data, **SETTINGS)
    spark.conf.set(KEY + "cache", "memory")
    expected = fit(data, **SETTINGS)
    assert same_bits(found, expected)
    assert [row["val_loss"] for row in found.history] == [row["val_loss"] for row in expected.history]


@pytest.mark.usefixtures("disk")
def test_training_is_the_same_as_from_memory(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        as_in_memory(frame(spark), spark)
    assert "rows are kept in memory" not in caplog.text
    assert folders(spark) == []


@pytest.mark.usefixtures("disk")
def test_a_limit_that_is_too_small_is_told_once(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set(KEY + "cacheLimit", "4B")
    with caplog.at_level(logging.WARNING):
        as_in_memory(frame(spark), spark)
    (told,) = [record.getMessage() for record in caplog.records if "kept in memory" in record.getMessage()]
    assert told.startswith("ranks 0, 1, 2 of 3: rows are kept in memory, although spark.sparkdl.comm.data.cache=disk: ")
    assert "spark.sparkdl.comm.data.cacheLimit=4 allows" in told
    assert folders(spark) == []
