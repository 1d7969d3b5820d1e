"""The Spark application ends while ranks run: what is cleaned up after them must not hide the reason."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

from sparkdl_comm.errors import GangError, RankLostError
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.job.driver_listener import DriverListener
from sparkdl_comm.job.interrupt import JobTag, describe_jobs
from sparkdl_comm.job.launch import run_gang
from sparkdl_comm.job.session import is_stopped
from tests.unit.job.test_local import spec_of
from tests.unit.local_functions import who


@pytest.fixture
def spark() -> Any:
    """A session with a SparkContext that runs until it has no ``_jsc``, as after ``stop``."""
    context = SparkContext.__new__(SparkContext)
    context._jsc = mock.MagicMock()
    return SimpleNamespace(_jsparkSession=None, sparkContext=context)


def stop_and_fail(spark: Any) -> None:
    with JobTag(spark) as tag, describe_jobs(spark, "a fit"):
        spark.sparkContext._jsc = None
        with pytest.raises(AttributeError):
            spark.sparkContext.removeJobTag(tag.name)
        tag.cancel()
        raise RuntimeError("Job 1 cancelled because SparkContext was shut down")


def test_cleaning_up_after_a_stopped_application(spark: Any) -> None:
    with pytest.raises(RuntimeError, match="Job 1 cancelled because SparkContext was shut down"):
        stop_and_fail(spark)


def test_whether_an_application_has_ended(spark: Any) -> None:
    scala = spark.sparkContext._jsc.sc.return_value
    scala.isStopped.return_value = False
    assert not is_stopped(spark)
    scala.isStopped.side_effect = Py4JError("the JVM is gone")
    assert is_stopped(spark)
    spark.sparkContext._jsc = None
    assert is_stopped(spark)


@pytest.mark.parametrize(
    ("reason", "expected", "message"),
    [
        (RuntimeError("Job 1 cancelled because SparkContext was shut down"), GangError, "Spark job was cancelled"),
        (
            AttributeError("'NoneType' has no attribute 'sc'"),
            GangError,
            "application has ended.$",
        ),
        (RuntimeError(Failure.of(RankLostError("rank 1"), rank=1).embed()), RankLostError, "rank 1"),
        (RankLostError("rank 0 has sent nothing"), RankLostError, "rank 0 has sent nothing"),
    ],
)
def test_the_error_of_an_application_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, reason: Exception, expected: type[Exception], message: str
) -> None:
    monkeypatch.setattr("sparkdl_comm.job.launch.driver_host", lambda spark, conf: "127.0.0.1")
    spark: Any = SimpleNamespace(is_stopped=True)

    def start(_: DriverListener) -> list[str]:
        raise reason

    with pytest.raises(expected, match=message):
        run_gang(start, spec_of(who), spark)
    spark.is_stopped = False
    if type(reason) is AttributeError:
        with pytest.raises(AttributeError):
            run_gang(start, spec_of(who), spark)
