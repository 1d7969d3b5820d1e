"""Fits whose rows come from a cache that the user has named.

The driver cannot look at the executors' disks. So it first runs the ranks without rows from Spark. If their hosts do
not have all parts of the cache, all ranks end at once, and the driver runs them again with rows from Spark.
"""

from __future__ import annotations

import hashlib
import io
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any, TypeAlias

import torch
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl_comm.data.fields import Decode
from sparkdl_comm.data.named_cache import NAME_KEY, NamedCache
from sparkdl_comm.job.interrupt import describe_jobs
from sparkdl_comm.job.summary import RankReport
from sparkdl_comm.job.task import RowsGoneError
from sparkdl_comm.train.spec import TrainSpec

#: Result of a run: the trained tensors by name, and one report per rank.
TrainingResult: TypeAlias = tuple[dict[str, torch.Tensor], list[RankReport]]
#: Function that runs a gang with one partition per rank.
GangRun: TypeAlias = Callable[[DataFrame, TrainSpec], TrainingResult]

_log = logging.getLogger(__name__)

#: In the name of a cache: a hash of all columns of all rows.
ROWS_FIELD = "{rows}"


def use_named_cache(
    run: GangRun, rows: DataFrame, partitions: DataFrame, spec: TrainSpec
) -> Callable[[TrainSpec], TrainingResult]:
    """Return a function that calls ``run`` with ``partitions`` of ``rows``, or with others if ranks find their rows in
    the cache that ``spec.conf`` names.

    Ranks that get rows from Spark keep them in the cache. Reports say why rows were read.
    """
    if not spec.conf.data.cache_name:
        return lambda spec: _add_reason(f"{NAME_KEY} is not set", *run(partitions, spec))
    cache = make_cache(rows, spec)

    def run_cached(spec: TrainSpec) -> TrainingResult:
        try:
            return run(rows.sparkSession.range(0, spec.world, 1, spec.world), replace(spec, cache=cache))
        except RowsGoneError as gone:
            reason = f"the cache {cache.name} is not complete on the hosts where the ranks ran"
            if str(gone):
                reason = f"the cache {cache.name} cannot be used: {gone}"
                _log.warning("%s. The rows are read again", reason)
        spec = replace(spec, attempt_id=secrets.token_hex(8), secret=secrets.token_bytes(32))
        tensors, reports = run(partitions, replace(spec, cache=replace(cache, is_read=False)))
        unkept = next((report.data["unkept"] for report in reports if report.data["unkept"]), None)
        if unkept is not None:
            _log.warning(
                "the next fit cannot use the cache %s, because not all ranks kept their rows: %s", cache.name, unkept
            )
        return _add_reason(reason, tensors, reports)

    return run_cached


def make_cache(rows: DataFrame, spec: TrainSpec) -> NamedCache:
    """Return the cache that ``spec.conf`` names, with the facts about ``rows``. Counts them in a Spark job.

    The job hashes labels and weights too. It hashes features only if the name contains :data:`ROWS_FIELD`, because that
    reads them all.
    """
    name, row_format = spec.conf.data.cache_name, spec.rows
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
    """Return a digest of a function as executors receive it, and of its code, even if executors import it."""
    function = getattr(decode, "func", decode)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    file = io.BytesIO()
    _CodePickler(file).dump((decode, code))
    return hashlib.sha256(file.getvalue()).hexdigest()[:12]


def _add_reason(reason: str, tensors: dict[str, torch.Tensor], reports: list[RankReport]) -> TrainingResult:
    """Return the run's results, with the reason why rows were read in each report."""
    return tensors, [replace(report, data={**report.data, "why_read": reason}) for report in reports]
