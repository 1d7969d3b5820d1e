"""Which rows each rank gets: the same, whatever partitions the DataFrame has. Else a restart on other executors has other rows
than its checkpoint, and the same seed gives other weights on another cluster."""

from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkdl_comm.job.launch
from sparkdl_comm import TorchEstimator

from ..nets import TwoClasses

FEW = settings(max_examples=1, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=40)

ROWS = st.lists(st.integers(0, 20), min_size=1, max_size=60)  # some are equal
SPLITS = st.lists(st.integers(1, 9), min_size=2, max_size=3, unique=True)


class DealtError(Exception):
    """Where the ranks would begin."""


def dealt(frame: DataFrame, ranks: int) -> list[list[int]]:
    """The ids of each rank's rows, sorted."""
    found: list[list[int]] = [[] for _ in range(ranks)]

    def run_tasks(partitions: DataFrame, *_: object) -> None:
        for row in partitions.select("id", F.spark_partition_id().alias("rank")).collect():
            found[row["rank"]].append(row["id"])
        raise DealtError

    estimator = TorchEstimator(model=TwoClasses, loss="CrossEntropyLoss", num_workers=ranks, strategy="gloo")
    with mock.patch.object(sparkdl_comm.job.launch, "run_tasks", run_tasks), pytest.raises(DealtError):
        estimator.fit(frame)
    return [sorted(rows) for rows in found]


def check(spark: SparkSession, rows: list[int], splits: list[int], ranks: int) -> None:
    data = spark.createDataFrame([([float(n), n / 7], n % 2) for n in rows], "features array<float>, label long")
    first, *others = (dealt(data.repartition(split), ranks) for split in splits)
    assert sum(map(len, first)) == len(rows)
    for other in others:
        assert other == first


@FEW
@example(rows=[*range(16), 3, 3], splits=[1, 7], ranks=3)
@given(rows=ROWS, splits=SPLITS, ranks=st.integers(1, 3))
def test_dealt_alike(spark: SparkSession, rows: list[int], splits: list[int], ranks: int) -> None:
    check(spark, rows, splits, ranks)


@pytest.mark.slow
@MANY
@given(rows=ROWS, splits=SPLITS, ranks=st.integers(1, 3))
def test_dealt_alike_often(spark: SparkSession, rows: list[int], splits: list[int], ranks: int) -> None:
    check(spark, rows, splits, ranks)
