"""Temporary settings of a Spark session, for fits that differ in settings alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from sparkdl_comm.conf import PREFIX


@contextmanager
def applied(spark: SparkSession, settings: Mapping[str, str | int], prefix: str = PREFIX) -> Iterator[None]:
    """Apply settings to the session during the block. Their keys are without ``prefix``."""
    before: dict[str, str | None] = {prefix + name: spark.conf.get(prefix + name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(prefix + name, value)
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)
