"""Record of the row sets on the executors' disks, for the driver, so that a later fit need not read the same data
again.

Wrong rows are worse than rows that are read twice. So two sources count as the same only if all of this holds:

- Spark says that their optimized plans give the same result.
- The plans read only files, whose sizes and modification times are unchanged.
- The plans use only Spark's own deterministic expressions.
- All settings of Spark SQL are equal.
- The code of ``decode`` is equal, byte by byte.

Cached DataFrames, tables of other kinds, user-defined functions and all data of Spark Connect are read in every fit.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm.conf import PREFIX
from sparkdl_comm.data.fields import Decode, RowFormat
from sparkdl_comm.data.kept_rows import describe_format
from sparkdl_comm.job.interrupt import JobTag
from sparkdl_comm.job.session import is_classic, session_conf
from sparkdl_comm.job.summary import RankReport
from sparkdl_comm.job.task import RowsGoneError
from sparkdl_comm.job.task_locations import find_task_locations, make_partitions_at
from sparkdl_comm.train.spec import RowSet, TrainSpec

#: Result of a run: the trained tensors by name, and one report per rank.
TrainingResult: TypeAlias = tuple[dict[str, torch.Tensor], list[RankReport]]
#: Function that runs a gang with one partition per rank.
GangRun: TypeAlias = Callable[[DataFrame, TrainSpec], TrainingResult]

_log = logging.getLogger(__name__)

#: Most files of a source. Each fit asks for the sizes and times of all.
_MAX_FILES = 5000
#: Least age of a file, in seconds. A younger file may change again with the same modification time.
_MIN_FILE_AGE_SECONDS = 3.0
#: Most row sets to remember.
_MAX_SETS = 64

_SPARK_SQL = "org.apache.spark.sql."
_ALLOWED_NODES = {
    f"{_SPARK_SQL}catalyst.plans.logical.{name}"
    for name in ("Project", "Filter", "Union", "Join", "Aggregate", "Distinct", "Sort", "Repartition")
} | {f"{_SPARK_SQL}catalyst.plans.logical.RepartitionByExpression"}
_RELATION = f"{_SPARK_SQL}execution.datasources.LogicalRelation"
_FILES = f"{_SPARK_SQL}execution.datasources.HadoopFsRelation"
_INDEX = f"{_SPARK_SQL}execution.datasources.InMemoryFileIndex"
_EXPRESSIONS = f"{_SPARK_SQL}catalyst.expressions."
#: Parts of the names of Spark's expressions that run foreign code or another query.
_FOREIGN = ("UDF", "UserDefined", "Python", "Subquery", "Reflect", "Exists", "Current", "InputFile", "objects.")
#: Reasons why a plan may give other rows each time, by the class of a node.
_USER_DEFINED = "the DataFrame has an expression that Spark does not define, such as a UDF"
_NOT_FILES = {
    "ArrowEvalPython": _USER_DEFINED,
    "BatchEvalPython": _USER_DEFINED,
    "Sample": "randomSplit and sample depend on how Spark splits its input; write the split to files to reuse its rows",
    "InMemoryRelation": "the DataFrame is cached by Spark; leave out cache() to reuse the rows on the executors' disks",
    "LogicalRDD": "the DataFrame is made of an RDD, not of files",
    "LocalRelation": "the DataFrame is made of rows on the driver, not of files",
}
_ML_FUNCTIONS = "org.apache.spark.ml.functions"
#: Settings that let Spark skip what it cannot read.
_LENIENT = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")


class _NotRepeatableError(Exception):
    """Signal that the rows may differ the next time they are read. The message says why."""


@dataclass(frozen=True)
class Source:
    """Identity of the data for ``world`` ranks. ``plan``: Spark's optimized plan, in the driver's JVM."""

    application: str
    plan: Any = field(compare=False)
    files: tuple[tuple[tuple[str, int, int], ...], ...]
    settings: str
    format: str
    world: int

    def is_same(self, other: Source) -> bool:
        """Return whether both give the same rows to each rank."""
        return self == other and bool(self.plan.sameResult(other.plan))


def identify_source(rows: DataFrame, row_format: RowFormat, world: int) -> Source | str:
    """Return the source of the ranks' rows, or the reason why a later fit could not recognize it. Runs no job."""
    if not is_classic(rows.sparkSession):
        return "Spark Connect does not show which files a DataFrame reads"
    try:
        return _identify_source(rows, row_format, world)
    except _NotRepeatableError as error:
        return str(error)
    except Py4JError:  # for example, the file system fails. If the rows cannot be read, the ranks will say so.
        _log.debug("cannot tell whether these rows were read before", exc_info=True)
        return "Spark did not say which files the DataFrame reads"


def _identify_source(rows: DataFrame, row_format: RowFormat, world: int) -> Source:
    spark = rows.sparkSession
    settings = session_conf(spark)
    lenient = [key for key in _LENIENT if settings.get(key, "false").lower() == "true"]
    if lenient:
        raise _NotRepeatableError(f"{lenient[0]}=true lets Spark leave out files")
    plan = rows._jdf.queryExecution().optimizedPlan()
    if not plan.deterministic() or plan.isStreaming():
        raise _NotRepeatableError("the DataFrame has an expression that may give other rows each time, such as rand()")
    files = _list_files(plan)
    sql_settings = sorted(item for item in settings.items() if not item[0].startswith(PREFIX))
    decodes = [_digest(each.decode) for each in row_format.inputs if each.decode is not None]
    return Source(
        spark.sparkContext.applicationId,
        plan,
        files,
        hashlib.sha256(repr(sql_settings).encode()).hexdigest(),
        repr([describe_format(row_format), decodes]),
        world,
    )


def _digest(decode: Decode) -> str:
    """Return a digest of a function as executors receive it, and of its code.

    The code is added because cloudpickle omits it from a function that executors can import.
    """
    function = getattr(decode, "func", decode)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    parts = [cloudpickle.dumps(decode)]
    if code is not None:
        parts += [code.co_code, repr(code.co_consts).encode(), repr(code.co_names).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _list_files(plan: Any) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    """Return path, size and modification time of all files of each relation of the plan, as they are now.

    :raises _NotRepeatableError: the plan reads something else, or the files may have changed since Spark listed them.
    """
    found, count, now = [], 0, time.time()
    for node in _plan_nodes(plan):
        name = _class_name(node)
        if name == _RELATION:
            relation = node.relation()
            if _class_name(relation) != _FILES or _class_name(relation.location()) != _INDEX:
                raise _NotRepeatableError("the DataFrame reads a table that is not made of files that Spark listed")
            if not _class_name(relation.fileFormat()).startswith("org.apache.spark."):
                raise _NotRepeatableError(f"the file format {_class_name(relation.fileFormat())} is not Spark's own")
            listed = relation.location().allFiles()
            count += listed.size()
            if count > _MAX_FILES:
                raise _NotRepeatableError(f"the DataFrame reads more than {_MAX_FILES} files")
            files = _current_files(relation, list(_iterate(listed)))
            if files is None:
                raise _NotRepeatableError("the files have changed since Spark listed them")
            if any(changed / 1000 > now - _MIN_FILE_AGE_SECONDS for _, _, changed in files):
                raise _NotRepeatableError(
                    f"a file was written less than {_MIN_FILE_AGE_SECONDS:g} seconds before the fit"
                )
            found.append(files)
        elif name not in _ALLOWED_NODES:
            kind = name.rpartition(".")[2]
            raise _NotRepeatableError(
                _NOT_FILES.get(kind, f"Spark's plan has a {kind}, which may give other rows each time")
            )
        elif not all(map(_is_repeatable, _iterate(node.expressions()))):
            raise _NotRepeatableError(_USER_DEFINED)
    return tuple(found)


def _current_files(relation: Any, listed: list[Any]) -> tuple[tuple[str, int, int], ...] | None:
    """Return the files of a relation as they are now, or None if they differ from ``listed``."""
    before = {status.getPath().toString(): (status.getLen(), status.getModificationTime()) for status in listed}
    conf = relation.sparkSession().sessionState().newHadoopConf()
    folders = {status.getPath().getParent().toString(): status.getPath().getParent() for status in listed}
    now: dict[str, tuple[int, int]] = {}
    for folder in folders.values():
        for status in folder.getFileSystem(conf).listStatus(folder):
            path = status.getPath().toString()
            if path in before:
                now[path] = status.getLen(), status.getModificationTime()
    return tuple((path, *now[path]) for path in sorted(now)) if now == before else None


def _is_repeatable(expression: Any) -> bool:
    """Return whether an expression and all its children are Spark's own, and depend on nothing but their inputs."""
    name = _class_name(expression)
    is_own = name.startswith(_EXPRESSIONS) and not any(each in name.removeprefix(_EXPRESSIONS) for each in _FOREIGN)
    if not is_own and not (
        name == f"{_EXPRESSIONS}ScalaUDF" and _class_name(expression.function()).startswith(_ML_FUNCTIONS)
    ):
        return False
    return all(map(_is_repeatable, _iterate(expression.children())))


def _plan_nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _iterate(plan.children()):
        yield from _plan_nodes(child)


def _iterate(sequence: Any) -> Iterator[Any]:
    """Return an iterator over a Scala sequence."""
    return (sequence.apply(index) for index in range(sequence.size()))


def _class_name(instance: Any) -> str:
    return str(instance.getClass().getName())


@dataclass(frozen=True)
class RowSetRecord:
    """Row set that was left on executors.

    ``locations``: where the ranks' rows are, see :mod:`sparkdl_comm.job.task_locations`. Empty if unknown.
    """

    name: str
    source: Source
    locations: tuple[str, ...] = ()


class RowSets:
    """Registry of the row sets that fits of this process have left on executors. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: list[RowSetRecord] = []  # the newest last

    def find(self, source: Source) -> RowSetRecord | None:
        """Return the newest row set of ``source``, or None."""
        with self._lock:
            return next((each for each in reversed(self._sets) if each.source.is_same(source)), None)

    def add(self, record: RowSetRecord) -> None:
        with self._lock:
            same_application = [each for each in self._sets if each.source.application == record.source.application]
            self._sets = [*same_application, record][-_MAX_SETS:]

    def forget(self, record: RowSetRecord) -> None:
        with self._lock:
            self._sets = [each for each in self._sets if each is not record]


ROW_SETS = RowSets()


def reuse_row_sets(run: GangRun, rows: DataFrame, partitions: DataFrame) -> Callable[[TrainSpec], TrainingResult]:
    """Return a function that calls ``run`` with ``partitions`` of ``rows``, or with empty ones if the rows are on
    executors' disks.

    Rows that are read are left on the disks if a later fit can recognize their source. Reports say why rows were read.
    """

    spark = rows.sparkSession

    def run_set(spec: TrainSpec) -> TrainingResult:
        if spec.conf.data.cache != "disk":
            return _add_reason(
                f"{PREFIX}data.cache={spec.conf.data.cache} keeps rows for one fit", *run(partitions, spec)
            )
        source = identify_source(rows, spec.rows, spec.world)
        if isinstance(source, str):
            return _add_reason(source, *run(partitions, spec))
        known = ROW_SETS.find(source)
        reason = "no earlier fit of this application left these rows on the executors' disks"
        if known is not None:
            try:
                return run(
                    _empty_partitions(spark, spec.world, known),
                    replace(spec, row_set=RowSet(known.name, is_cached=True)),
                )
            except RowsGoneError as gone:
                ROW_SETS.forget(known)
                if str(gone):
                    _log.warning("rows that an earlier fit kept cannot be used, and are read again: %s", gone)
                    reason = f"the rows that an earlier fit kept cannot be used: {gone}"
                else:
                    reason = "the rows that an earlier fit kept are not all there, or not where the tasks ran"
                    _log.info("%s: they are read again", reason)
                spec = replace(spec, attempt_id=secrets.token_hex(8), secret=secrets.token_bytes(32))
        name = secrets.token_hex(8)
        with JobTag(spark) as tag:
            tensors, reports = run(partitions, replace(spec, row_set=RowSet(name, is_cached=False)))
        # If files changed meanwhile, it is unknown which version was read.
        if all(report.data["kept"] for report in reports) and identify_source(rows, spec.rows, spec.world) == source:
            ROW_SETS.add(RowSetRecord(name, source, _find_locations(spark, tag, reports)))
        return _add_reason(reason, tensors, reports)

    return run_set


def _add_reason(reason: str, tensors: dict[str, torch.Tensor], reports: list[RankReport]) -> TrainingResult:
    """Return the run's results, with the reason why rows were read in each report."""
    return tensors, [replace(report, data={**report.data, "why_read": reason}) for report in reports]


def _empty_partitions(spark: SparkSession, world: int, known: RowSetRecord) -> DataFrame:
    """Return empty partitions for the ranks, which prefer the executors with their rows if these are known."""
    if known.locations:
        with suppress(Py4JError):
            return make_partitions_at(spark, known.locations)
    return spark.range(0, world, 1, world)


def _find_locations(spark: SparkSession, tag: JobTag, reports: Sequence[RankReport]) -> tuple[str, ...]:
    """Return where each rank's task ran, by rank. Empty if Spark does not know."""
    with suppress(Py4JError):
        ran = find_task_locations(spark, tag, len(reports))
        locations = [ran.get(report.data["place"], "") for report in sorted(reports, key=lambda report: report.rank)]
        return tuple(locations) if all(locations) else ()
    return ()
