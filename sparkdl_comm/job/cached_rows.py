"""Fits whose rows come from a cache that the user has named.

The driver cannot look at the executors' disks. So it first runs the ranks without rows from Spark. If their hosts do
not have all parts of the cache, all ranks end at once, and the driver runs them again with rows from Spark.
"""

from __future__ import annotations

import hashlib
import io
import logging
import secrets
from dataclasses import replace
from types import CodeType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl_comm.data.fields import Decode
from sparkdl_comm.data.named_cache import NO_NAME, NamedCache
from sparkdl_comm.job.driver_listener import OnProgress
from sparkdl_comm.job.interrupt import describe_jobs
from sparkdl_comm.job.launch import TrainingResult, run_once
from sparkdl_comm.job.task import RowsGoneError
from sparkdl_comm.train.spec import TrainSpec

_log = logging.getLogger(__name__)

#: In the name of a cache: a hash of all columns of all rows.
ROWS_FIELD = "{rows}"


def run_with_cache(rows: DataFrame, spec: TrainSpec, on_progress: OnProgress) -> TrainingResult:
    """Train with ranks that find their rows in ``spec.cache``, or else get ``rows`` from Spark and keep them in the cache.

    Reports say why rows were read. The other parameters, the result and the errors are those of
    :func:`~sparkdl_comm.job.launch.run_once`.
    """
    reason, cache = NO_NAME, spec.cache
    if cache is not None:
        try:
            return run_once(rows.sparkSession.range(0, spec.world, 1, spec.world), spec, on_progress)
        except RowsGoneError as gone:
            reason = f"the cache {cache.name} is not complete on the hosts where the ranks ran"
            if ROWS_FIELD in spec.conf.data.cache_name:
                reason += ". Its name has a hash of the rows: a fit whose cache has another hash had other rows"
            if str(gone):
                reason = f"the cache {cache.name} cannot be used: {gone}"
                _log.warning("%s. The rows are read again", reason)
        spec = replace(
            spec,
            attempt_id=secrets.token_hex(8),
            secret=secrets.token_bytes(32),
            cache=replace(cache, is_read=False),
        )
    # Partition by a hash of the row, not by how Spark splits its input. That depends on the executors that are present,
    # and other rows per rank give other weights. Spark does not merge these partitions, as it may merge those of other
    # shuffles.
    tensors, reports = run_once(rows.repartition(spec.world, "id"), spec, on_progress)
    unkept = next((report.data["unkept"] for report in reports if report.data["unkept"]), None)
    if cache is not None and unkept is not None:
        _log.warning(
            "the next fit cannot use the cache %s, because not all ranks kept their rows: %s", cache.name, unkept
        )
    return tensors, [replace(report, data={**report.data, "why_read": reason}) for report in reports]


def make_cache(rows: DataFrame, spec: TrainSpec) -> NamedCache | None:
    """Return the cache that ``spec.conf`` names, with the facts about ``rows``. Counts them in a Spark job.

    Return None, and count nothing, if it names none.

    The job hashes labels and weights too. It hashes features only if the name contains :data:`ROWS_FIELD`, because that
    reads them all.
    """
    name, row_format = spec.conf.data.cache_name, spec.rows
    if not name:
        return None
    narrow = [each for each in rows.columns if each.startswith("target") or each == "weight"]
    has_fraction = row_format.validation is not None and row_format.validation.startswith("validationFraction")
    if row_format.validation is not None and not has_fraction:
        narrow.append("validation")
    sums = [F.count(F.lit(1)).alias("rows"), _sum_hashes(F.xxhash64(*narrow)).alias("labels")]
    if ROWS_FIELD in name:
        sums.append(_sum_hashes(F.col("id")).alias("contents"))
    with describe_jobs(rows.sparkSession, f"sparkdl_comm fit: count the rows for the cache {name}"):
        (found,) = rows.agg(*sums).collect()
    validation = f"{row_format.validation}, seed={spec.seed}" if has_fraction else row_format.validation
    facts = {
        "rows": found["rows"],
        "ranks": spec.world,
        "types": rows.select(*(each for each in rows.columns if each != "id")).schema.simpleString(),
        "decode": ", ".join(digest(field.decode) for field in row_format.inputs if field.decode is not None),
        "validation": str(validation),
        "hash of labels, weights and validationIndicatorCol": str(found["labels"]),
    }
    if ROWS_FIELD in name:
        contents = hashlib.sha256(f"{found['rows']} {found['contents']}".encode()).hexdigest()
        name = name.replace(ROWS_FIELD, contents[:12])
    return NamedCache(name, facts, is_read=True)


def _sum_hashes(column: Any) -> Any:
    """Return the sum of 64-bit hashes, which does not depend on the order of the rows, and cannot overflow."""
    return F.sum(column.cast("decimal(38,0)"))


class _CodePickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickler of functions, for digests that are equal in all processes.

    It leaves out the file and the line numbers of the code, and sorts the elements of sets.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            constants = [sorted(map(repr, each)) if isinstance(each, frozenset) else each for each in value.co_consts]
            return tuple, ((value.co_name, value.co_code, value.co_names, value.co_varnames, constants),)
        return super().reducer_override(value)


def digest(decode: Decode) -> str:
    """Return a digest of a function and its code.

    The digest covers the pickle that executors receive. If executors import the function, the pickle has only its name,
    so the digest covers its code as well.
    """
    function = getattr(decode, "func", decode)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    file = io.BytesIO()
    _CodePickler(file).dump((decode, code))
    return hashlib.sha256(file.getvalue()).hexdigest()[:12]
