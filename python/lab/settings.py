"""Temporary settings of a Spark session, for fits that differ in settings alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from sparkdl_comm.conf import PREFIX


@contextmanager
def applied(spark: SparkSession, settings: Mapping[str, str | int | None], prefix: str = PREFIX) -> Iterator[None]:
    """Apply settings to the session during the block. Their keys are without ``prefix``. None: the key is not set."""
    before: dict[str, str | None] = {prefix + name: spark.conf.get(prefix + name, None) for name in settings}
    try:
        for name, value in settings.items():
            _set(spark, prefix + name, value)
        yield
    finally:
        for key, earlier in before.items():
            _set(spark, key, earlier)


def _set(spark: SparkSession, key: str, value: str | int | None) -> None:
    if value is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, value)
