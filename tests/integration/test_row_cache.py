"""Rows on the executors' disks, and caches of them that users name."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from lab.settings import applied
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.errors import ConfError
from tests.integration.nets import Random, Small, noisy
from tests.integration.test_training import fit, frame, same_bits
from tests.unit.disk_helpers import left

KEY = "spark.sparkdl.comm.data."
SETTINGS = {"model": Random, "batch": 20, "epochs": 2, "num_workers": 3, "strategy": "gloo", "validationFraction": 0.3}


@pytest.fixture
def disk(spark: SparkSession) -> Iterator[None]:
    with applied(spark, {"cache": "disk", "cacheLimit": "100GiB"}, KEY):
        yield


@pytest.fixture
def caches(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The directory of the cache "clicks", which all executors of the test's cluster share."""
    path = tmp_path / "caches"
    with applied(spark, {"cacheName": "clicks", "cacheDir": str(path)}, KEY):
        yield path


def folders(spark: SparkSession) -> list[str]:
    """What ranks have left in the executors' local directories."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from sparkdl_comm.data.local_disk import LocalDisk

        for batch in batches:
            found = [path.name for path in Path(LocalDisk.of_executor(1).root).glob("*/")]
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
@pytest.mark.slow
def test_a_limit_that_is_too_small_is_told_once(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set(KEY + "cacheLimit", "4B")
    with caplog.at_level(logging.WARNING):
        as_in_memory(frame(spark), spark)
    (told,) = [record.getMessage() for record in caplog.records if "kept in memory" in record.getMessage()]
    assert told.startswith("ranks 0, 1, 2 of 3: rows are kept in memory, not on the executor's disk: ")
    assert "spark.sparkdl.comm.data.cacheLimit=4, " in told
    assert folders(spark) == []


def reused(model: TorchModel) -> bool:
    return model.summary["data"]["reused"]


def other_features(data: DataFrame) -> DataFrame:
    return data.withColumn("features", F.transform("features", lambda value: value + 1))


def test_the_next_fit_reads_what_was_kept(spark: SparkSession, caches: Path) -> None:
    """It counts the rows and hashes the labels, but does not read the features, which are other ones now."""
    data = frame(spark)
    first = fit(data, **SETTINGS)
    second = fit(other_features(data), **SETTINGS)
    assert [reused(first), reused(second)] == [False, True]
    assert "the cache clicks is not complete" in first.summary["data"]["why_read"]
    assert "why_read" not in second.summary["data"]
    assert same_bits(first, second)
    assert [row["val_loss"] for row in first.history] == [row["val_loss"] for row in second.history]
    assert second.summary["rows"] == first.summary["rows"]
    again = fit(data, **{**SETTINGS, "batch": 40, "model": Small})
    assert reused(again), "with another batch and model"
    assert left(caches) == ["clicks-0", "clicks-1", "clicks-2"]
    with applied(spark, {"cacheName": ""}, KEY):
        unnamed = fit(data, **SETTINGS)
    assert not reused(unnamed)
    assert unnamed.summary["data"]["why_read"] == "spark.sparkdl.comm.data.cacheName is not set"
    assert unnamed.summary["data"]["cache"] == "memory"


@pytest.mark.usefixtures("caches")
@pytest.mark.slow
def test_other_rows_are_refused_with_what_differs(spark: SparkSession) -> None:
    data = frame(spark)
    first = fit(data, **SETTINGS)
    for changed, settings, words in (
        (data.limit(30), {}, r"rows \(30, in the cache "),
        (data.withColumn("label", F.col("label") % 2), {}, "hash of labels"),
        (data.withColumn("features", F.col("features").cast("array<double>")), {"inputTypes": ["float64"]}, "types"),
        (data, {"num_workers": 2}, r"ranks \(2, in the cache 3\)"),
        (data, {"validationFraction": 0.2}, r"validation \(validationFraction=0.2, seed=5, in the cache "),
        (data, {"seed": 6}, "seed=6, in the cache validationFraction=0.3, seed=5"),
    ):
        with pytest.raises(ConfError, match=rf"data\.cacheName=clicks: .*{words}.* Set another name, or remove"):
            fit(changed, **{**SETTINGS, **settings})
    again = fit(data, **SETTINGS)
    assert reused(again)
    assert same_bits(first, again)


@pytest.mark.slow
def test_a_name_that_follows_the_rows(spark: SparkSession, caches: Path) -> None:
    """As many rows with the same labels, in other numbers, are another cache."""
    data = frame(spark)
    with applied(spark, {"cacheName": "fold-{rows}"}, KEY):
        fits = [fit(each, **SETTINGS) for each in (data, other_features(data), data.repartition(5))]
    assert list(map(reused, fits)) == [False, False, True]
    assert len({name.rpartition("-")[0] for name in left(caches)}) == 2


@pytest.mark.usefixtures("caches")
@pytest.mark.slow
def test_random_splits_of_other_partitions_are_other_rows(spark: SparkSession) -> None:
    """The seed alone does not decide which rows a split has. The reason says that the rows were others."""

    def half(data: DataFrame) -> DataFrame:
        return data.randomSplit([0.5, 0.5], seed=1)[0]

    data = frame(spark)
    with applied(spark, {"cacheName": "half-{rows}"}, KEY):
        fits = [fit(half(each), **SETTINGS) for each in (data.repartition(3), data.repartition(3), data.repartition(5))]
    assert list(map(reused, fits)) == [False, True, False]
    why = fits[-1].summary["data"]["why_read"]
    assert why.endswith("Its name has a hash of the rows: a fit whose cache has another hash had other rows")
    assert f", because {why}" in str(fits[-1].summary)


@pytest.mark.slow
def test_with_fewer_ranks_than_slots_they_find_their_rows(spark: SparkSession, caches: Path) -> None:
    data, settings = frame(spark), {**SETTINGS, "num_workers": 2, "epochs": 1}
    assert [reused(fit(data, **settings)) for _ in range(3)] == [False, True, True]
    assert left(caches) == ["clicks-0", "clicks-1"]


@pytest.mark.usefixtures("caches")
@pytest.mark.slow
def test_vectors_are_kept_too(spark: SparkSession) -> None:
    data = frame(spark).select(array_to_vector("features").alias("features"), "label")
    first, second = (fit(data, **SETTINGS) for _ in range(2))
    assert reused(second)
    assert same_bits(first, second)


@pytest.mark.slow
def test_a_part_that_is_damaged_or_gone_is_read_again(spark: SparkSession, caches: Path) -> None:
    settings = {**SETTINGS, "epochs": 1}
    data = frame(spark)
    first = fit(data, **settings)
    part = caches / "sparkdl-rows" / "clicks-1"
    for remove in (False, True):
        contents = bytearray((part / "rows.arrow").read_bytes())
        contents[len(contents) // 2] ^= 1
        (part / "rows.arrow").write_bytes(contents)
        if remove:
            shutil.rmtree(part)
        again, after = fit(data, **settings), fit(data, **settings)
        assert [reused(again), reused(after)] == [False, True]
        assert same_bits(first, again)
        assert same_bits(first, after)


@pytest.mark.slow
def test_a_part_of_other_rows_is_not_mixed_with_the_rest(spark: SparkSession, caches: Path) -> None:
    """The features of the DataFrame have changed, and one part of the cache with the new ones is lost."""
    settings = {**SETTINGS, "epochs": 1}
    data = frame(spark)
    other = other_features(data)
    fit(data, **settings)
    root, aside = caches / "sparkdl-rows", caches / "aside"
    (root / "clicks-1").rename(aside)
    expected = fit(other, **settings)
    shutil.rmtree(root / "clicks-1")
    aside.rename(root / "clicks-1")
    again = fit(other, **settings)
    assert not reused(again)
    assert same_bits(again, expected)
    assert reused(fit(other, **settings))


@pytest.mark.slow
def test_a_cache_directory_that_cannot_be_read_is_told_once(
    spark: SparkSession, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the rows are read again, into memory, as nothing can be written there either."""
    data = frame(spark)
    first = fit(data, **SETTINGS)
    lock = caches / "sparkdl-rows" / "lock"
    lock.unlink()
    lock.mkdir()
    with caplog.at_level(logging.WARNING):
        again = fit(data, **SETTINGS)
    texts = [record.getMessage() for record in caplog.records]
    (told,) = [text for text in texts if "cannot be used" in text]
    assert told.startswith("the cache clicks cannot be used: task ")
    assert "Is a directory" in told
    assert len([text for text in texts if "of 3: rows are kept in memory" in text]) == 1
    assert len([text for text in texts if "the next fit cannot use the cache clicks" in text]) == 1
    assert not reused(again)
    assert same_bits(first, again)


@pytest.mark.usefixtures("caches")
@pytest.mark.slow
def test_two_fits_at_a_time_use_the_same_parts(spark: SparkSession) -> None:
    data, settings = frame(spark), {**SETTINGS, "num_workers": 1, "epochs": 3}
    with ThreadPoolExecutor(2) as pool:
        first, *models = [*pool.map(lambda _: fit(data, **settings), range(2)), fit(data, **settings)]
    assert all(same_bits(model, first) for model in models)
    assert reused(models[-1])


@pytest.mark.usefixtures("caches")
@pytest.mark.slow
def test_augment(spark: SparkSession, tmp_path: Path) -> None:
    """Another estimator's copy, from a file, trains to the same bits; without it the model is another one."""
    estimator = TorchEstimator(
        model=Small, loss="CrossEntropyLoss", num_workers=3, seed=5, strategy="gloo", augment=noisy
    )
    data = frame(spark)
    estimator.write().save(str(tmp_path / "estimator"))
    first, second = estimator.fit(data), TorchEstimator.load(str(tmp_path / "estimator")).fit(data)
    assert reused(second)
    assert same_bits(first, second)
    assert not same_bits(first, estimator.setAugment(None).fit(data))
