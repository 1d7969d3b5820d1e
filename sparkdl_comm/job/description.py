"""Description and group of this package's jobs in the Spark UI.

Spark reads both when a job starts, and cannot change them later. So they do not have the current epoch, which the progress
bar shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from sparkdl_comm.job.session import is_classic

#: Local properties of SparkContext that the UI shows.
_DESCRIPTION, _GROUP = "spark.job.description", "spark.jobGroup.id"
_OWN_GROUP = "sparkdl_comm"


@contextmanager
def describe_jobs(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the description and, unless the user has set one, the group of the jobs that this thread starts in the
    context.

    A description that the user has set precedes ``text``. Spark Connect has neither, so there this does nothing.
    """
    if not is_classic(spark):
        yield
        return
    context = spark.sparkContext
    before = {key: context.getLocalProperty(key) for key in (_DESCRIPTION, _GROUP)}
    users = before[_DESCRIPTION]
    context.setLocalProperty(_DESCRIPTION, f"{users}: {text}" if users else text)
    if before[_GROUP] is None:
        context.setLocalProperty(_GROUP, _OWN_GROUP)
    try:
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)  # type: ignore[arg-type]
