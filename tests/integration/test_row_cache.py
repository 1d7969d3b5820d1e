"""Rows on the executors' disks."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.job.row_sets import Source, identify_source
from tests.integration.nets import Random, Small, noisy
from tests.integration.test_training import ROWS, fit, frame, same_bits

KEY = "spark.sparkdl.comm.data."
SETTINGS = {"model": Random, "batch": 20, "epochs": 2, "num_workers": 3, "strategy": "gloo", "validationFraction": 0.3}


@pytest.fixture
def disk(spark: SparkSession) -> Iterator[None]:
    """No fit before has left anything."""
    spark.conf.set(KEY + "cache", "disk")
    clear(spark)
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


def clear(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from sparkdl_comm.data.local_disk import LocalDisk

        for batch in batches:
            shutil.rmtree(LocalDisk.of_executor(1)._root, ignore_errors=True)
            yield pa.RecordBatch.from_arrays([batch.column(0)], ["id"])

    spark.range(0, 3, 1, 3).mapInArrow(look, "id long", barrier=True).collect()


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
    assert "spark.sparkdl.comm.data.cacheLimit=4, " in told
    assert folders(spark) == []


def files(spark: SparkSession, folder: Path, rows: int = ROWS) -> DataFrame:
    """Written long enough ago."""
    path = folder / "files"
    frame(spark, rows).repartition(4).write.parquet(str(path))
    for file in path.iterdir():
        os.utime(file, (10**9, 10**9))
    return spark.read.parquet(str(path))


def overwrite(contents: dict[Path, bytes]) -> None:
    for file, data in contents.items():
        file.write_bytes(data)
        os.utime(file, (10**9, 10**9))


def reused(model: TorchModel) -> bool:
    return model.summary["data"]["reused"]


@pytest.mark.usefixtures("disk")
def test_the_next_fit_reads_what_was_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Without Spark, which could not read the files any more: they are garbage, of the same sizes and times."""
    data = files(spark, tmp_path)
    path = tmp_path / "files"
    first = fit(data, **SETTINGS)
    written = {file: file.read_bytes() for file in path.iterdir()}
    overwrite({file: bytes(len(data)) for file, data in written.items()})
    second = fit(data, **SETTINGS)
    overwrite(written)
    assert [reused(first), reused(second)] == [False, True]
    assert first.summary["data"]["why_read"].startswith("no earlier fit of this application")
    assert "why_read" not in second.summary["data"]
    assert same_bits(first, second)
    assert [row["val_loss"] for row in first.history] == [row["val_loss"] for row in second.history]
    assert second.summary["rows"] == first.summary["rows"]
    other = fit(spark.read.parquet(str(path)), **{**SETTINGS, "seed": 6, "validationFraction": None})
    assert not reused(other), "other columns"
    again = fit(spark.read.parquet(str(path)), **{**SETTINGS, "batch": 40})
    assert reused(again), "another DataFrame of the same files"
    parts = [name for name in folders(spark) if not name.startswith("writing-")]
    assert len(parts) == 6
    assert len({name.partition("-")[0] for name in parts}) == 2


@pytest.mark.usefixtures("disk")
def test_with_fewer_ranks_than_slots_they_run_where_their_rows_are(spark: SparkSession, tmp_path: Path) -> None:
    data, settings = files(spark, tmp_path), {**SETTINGS, "num_workers": 2, "epochs": 1}
    assert [reused(fit(data, **settings)) for _ in range(4)] == [False, True, True, True]
    assert not reused(fit(data, **{**settings, "num_workers": 1}))


@pytest.mark.usefixtures("disk")
@pytest.mark.slow
def test_what_may_be_other_rows_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 1, "model": Small}  # a rank may have one row in a step
    data = files(spark, tmp_path)
    path = str(tmp_path / "files")
    fit(data, **settings)
    assert reused(fit(data, **settings))
    victim = next(Path(path).glob("*.parquet"))
    os.utime(victim, (10**9, 10**9 + 1))
    assert not reused(fit(data, **settings)), "listed before it was changed"
    assert not reused(fit(spark.read.parquet(path), **settings)), "changed"
    assert reused(fit(spark.read.parquet(path), **settings))
    os.utime(victim)
    for _ in range(2):
        assert not reused(fit(spark.read.parquet(path), **settings)), "changed only now"
    os.utime(victim, (10**9, 10**9 + 1))
    for name, frame_ in {
        "in memory": spark.read.parquet(path).cache(),
        "of the driver": frame(spark),
        "drawn": spark.read.parquet(path).withColumn("label", (F.rand(3) * 2).cast("long")),
        "user-defined": spark.read.parquet(path).withColumn("label", F.udf(lambda label: label, "long")("label")),
        "limited": spark.read.parquet(path).limit(30),
    }.items():
        for _ in range(2):
            assert not reused(fit(frame_, **settings)), name
        frame_.unpersist()
    filtered = spark.read.parquet(path).where("label < 5").withColumn("label", F.col("label") % 2)
    assert [reused(fit(filtered, **settings)) for _ in range(2)] == [False, True]
    spark.conf.set("spark.sql.ansi.enabled", "true")
    assert not reused(fit(filtered, **settings)), "another setting"
    spark.conf.unset("spark.sql.ansi.enabled")
    assert reused(fit(filtered, **settings))


def test_why_rows_will_be_read_again(spark: SparkSession, tmp_path: Path) -> None:
    """Found on the driver, without a job."""
    data = files(spark, tmp_path)
    cached = spark.read.parquet(str(tmp_path / "files")).cache()
    reasons = {
        "randomSplit": data.randomSplit([0.8, 0.2], seed=1)[0],
        "rand": data.withColumn("label", F.rand(3)),
        "a UDF": data.withColumn("label", F.udf(lambda label: label, "long")("label")),
        r"leave out cache\(\)": cached,
        "rows on the driver|an RDD": frame(spark),
    }
    for words, rows in reasons.items():
        reason = identify_source(rows, RowFormat(), 2)
        assert isinstance(reason, str), words
        assert re.search(words, reason), reason
    cached.unpersist()
    assert isinstance(identify_source(data, RowFormat(), 2), Source)


@pytest.mark.usefixtures("disk")
def test_vectors_are_kept_too(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "vectors")
    frame(spark).select(array_to_vector("features").alias("features"), "label").write.parquet(path)
    for file in Path(path).iterdir():
        os.utime(file, (10**9, 10**9))
    first, second = (fit(spark.read.parquet(path), **SETTINGS) for _ in range(2))
    assert reused(second)
    assert same_bits(first, second)


@pytest.mark.usefixtures("disk")
def test_a_part_that_is_damaged_or_gone_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 1}
    data = files(spark, tmp_path)
    first = fit(data, **settings)
    for remove in (False, True):
        (name, *_) = (name for name in folders(spark) if name.endswith("-1"))
        spoil(spark, remove)
        again, after = fit(data, **settings), fit(data, **settings)
        assert [reused(again), reused(after)] == [False, True], name
        assert same_bits(first, again)
        assert same_bits(first, after)


def spoil(spark: SparkSession, remove: bool) -> None:
    """The parts of rank 1, on any executor."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from sparkdl_comm.data.local_disk import LocalDisk

        for batch in batches:
            for path in Path(LocalDisk.of_executor(1)._root).glob("*-1"):
                data = bytearray((path / "rows.arrow").read_bytes())
                data[len(data) // 2] ^= 1
                (path / "rows.arrow").write_bytes(data)
                if remove:
                    shutil.rmtree(path)
            yield pa.RecordBatch.from_arrays([batch.column(0)], ["id"])

    spark.range(0, 3, 1, 3).mapInArrow(look, "id long", barrier=True).collect()


@pytest.mark.usefixtures("disk")
def test_a_cache_directory_that_cannot_be_read_is_told_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the rows are read again, into memory, as nothing can be written there either."""
    data = files(spark, tmp_path)
    first = fit(data, **SETTINGS)

    def lock_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from sparkdl_comm.data.local_disk import LocalDisk

        for batch in batches:
            lock = Path(LocalDisk.of_executor(1)._root) / "lock"
            lock.unlink(missing_ok=True)
            lock.mkdir(exist_ok=True)
            yield pa.RecordBatch.from_arrays([batch.column(0)], ["id"])

    spark.range(0, 3, 1, 3).mapInArrow(lock_out, "id long", barrier=True).collect()
    try:
        with caplog.at_level(logging.WARNING):
            again = fit(data, **SETTINGS)
    finally:
        clear(spark)
    texts = [record.getMessage() for record in caplog.records]
    (told,) = [text for text in texts if "that an earlier fit kept" in text]
    assert "rows that an earlier fit kept cannot be used, and are read again: task " in told
    assert "Is a directory" in told
    assert len([text for text in texts if "rows are kept in memory" in text]) == 1
    assert not reused(again)
    assert same_bits(first, again)


@pytest.mark.usefixtures("disk")
def test_two_fits_at_a_time_use_the_same_parts(spark: SparkSession, tmp_path: Path) -> None:
    data, settings = files(spark, tmp_path), {**SETTINGS, "num_workers": 1, "epochs": 3}
    first = fit(data, **settings)
    with ThreadPoolExecutor(2) as pool:
        models = list(pool.map(lambda _: fit(data, **settings), range(2)))
    assert all(same_bits(model, first) for model in models)
    assert any(map(reused, models))


@pytest.mark.usefixtures("disk")
def test_augment(spark: SparkSession, tmp_path: Path) -> None:
    """Another estimator's copy, from a file, trains to the same bits; without it the model is another one."""
    estimator = TorchEstimator(
        model=Small, loss="CrossEntropyLoss", num_workers=3, seed=5, strategy="gloo", augment=noisy
    )
    data = files(spark, tmp_path)
    estimator.write().save(str(tmp_path / "estimator"))
    first, second = estimator.fit(data), TorchEstimator.load(str(tmp_path / "estimator")).fit(data)
    assert reused(second)
    assert same_bits(first, second)
    assert not same_bits(first, estimator.setAugment(None).fit(data))
