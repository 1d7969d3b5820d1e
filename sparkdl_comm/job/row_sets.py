"""Which row sets are on the executors' disks, and of which data: for the driver, which then need not read these again.

Wrong rows are worse than rows that are read twice. So data count as the same only if Spark says that the optimized plans give
the same result, and the plans are of files alone, which are there with the same sizes and times of change, and of expressions
of Spark's own that always give the same; if no setting of Spark SQL is another; and if ``decode`` is the same code, byte by
byte. Data that Spark keeps in memory itself, tables of other kinds, user-defined functions, and all of Spark Connect are read
in every fit.
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
from sparkdl_comm.data.kept import described
from sparkdl_comm.job.interrupt import JobTag
from sparkdl_comm.job.places import partitions_at, ran_on
from sparkdl_comm.job.session import is_classic, session_conf
from sparkdl_comm.job.summary import RankReport
from sparkdl_comm.job.task import RowsGoneError
from sparkdl_comm.train.spec import RowSet, TrainSpec

#: What a run gives: the trained tensors by name, one report per rank.
Trained: TypeAlias = tuple[dict[str, torch.Tensor], list[RankReport]]
#: Runs a gang whose ranks get a partition each.
Run: TypeAlias = Callable[[DataFrame, TrainSpec], Trained]

_log = logging.getLogger(__name__)

#: Of files, whose sizes and times are asked for in every fit.
_MOST_FILES = 5000
#: A file that was changed so many seconds ago may change once more without a difference in its time.
_SETTLED_SECONDS = 3.0
#: Row sets that are known at once.
_MOST_SETS = 64

_SPARKS = "org.apache.spark.sql."
_NODES = {
    f"{_SPARKS}catalyst.plans.logical.{name}"
    for name in ("Project", "Filter", "Union", "Join", "Aggregate", "Distinct", "Sort", "Repartition")
} | {f"{_SPARKS}catalyst.plans.logical.RepartitionByExpression"}
_RELATION = f"{_SPARKS}execution.datasources.LogicalRelation"
_FILES = f"{_SPARKS}execution.datasources.HadoopFsRelation"
_INDEX = f"{_SPARKS}execution.datasources.InMemoryFileIndex"
_EXPRESSIONS = f"{_SPARKS}catalyst.expressions."
#: What is among Spark's expressions, but runs what others wrote, or another query.
_FOREIGN = ("UDF", "UserDefined", "Python", "Subquery", "Reflect", "Exists", "Current", "InputFile", "objects.")
#: Why nodes of other plans do not give the same rows each time, by class.
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
#: Settings with which Spark leaves out what it cannot read.
_LENIENT = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")


class _NotRepeatableError(Exception):
    """The rows may differ the next time they are read; the message says why."""


@dataclass(frozen=True)
class Source:
    """Data for a number of ranks, as far as they can be told from others. ``plan``: of Spark, in the driver's JVM."""

    application: str
    plan: Any = field(compare=False)
    files: tuple[tuple[tuple[str, int, int], ...], ...]
    settings: str
    format: str
    world: int

    def same(self, other: Source) -> bool:
        """Whether both give the same rows to each rank."""
        return self == other and bool(self.plan.sameResult(other.plan))


def source_of(rows: DataFrame, form: RowFormat, world: int) -> Source | str:
    """Return what the ranks are to read, or the reason why a later fit could not tell that it reads the same. Runs no job."""
    if not is_classic(rows.sparkSession):
        return "Spark Connect does not show which files a DataFrame reads"
    try:
        return _source_of(rows, form, world)
    except _NotRepeatableError as error:
        return str(error)
    except Py4JError:  # such as of a file system that fails now; if the rows cannot be read, ranks will say so
        _log.debug("it is not known whether these rows were read before", exc_info=True)
        return "Spark did not say which files the DataFrame reads"


def _source_of(rows: DataFrame, form: RowFormat, world: int) -> Source:
    spark = rows.sparkSession
    settings = session_conf(spark)
    lenient = [key for key in _LENIENT if settings.get(key, "false").lower() == "true"]
    if lenient:
        raise _NotRepeatableError(f"{lenient[0]}=true lets Spark leave out files")
    plan = rows._jdf.queryExecution().optimizedPlan()
    if not plan.deterministic() or plan.isStreaming():
        raise _NotRepeatableError("the DataFrame has an expression that may give other rows each time, such as rand()")
    files = _files_of(plan)
    told = sorted(item for item in settings.items() if not item[0].startswith(PREFIX))
    decodes = [_digest(each.decode) for each in form.inputs if each.decode is not None]
    return Source(
        spark.sparkContext.applicationId,
        plan,
        files,
        hashlib.sha256(repr(told).encode()).hexdigest(),
        repr([described(form), decodes]),
        world,
    )


def _digest(decode: Decode) -> str:
    """Of a function, as executors get it, and of its code, which is not sent if they can import it."""
    function = getattr(decode, "func", decode)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    parts = [cloudpickle.dumps(decode)]
    if code is not None:
        parts += [code.co_code, repr(code.co_consts).encode(), repr(code.co_names).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _files_of(plan: Any) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    """Return path, size and time of change of all files of each relation of the plan, as they are now.

    :raises _NotRepeatableError: the plan reads something else, or the files may have changed since Spark listed them.
    """
    found, count, now = [], 0, time.time()
    for node in _nodes(plan):
        name = _class(node)
        if name == _RELATION:
            relation = node.relation()
            if _class(relation) != _FILES or _class(relation.location()) != _INDEX:
                raise _NotRepeatableError("the DataFrame reads a table that is not made of files that Spark listed")
            if not _class(relation.fileFormat()).startswith("org.apache.spark."):
                raise _NotRepeatableError(f"the file format {_class(relation.fileFormat())} is not Spark's own")
            listed = relation.location().allFiles()
            count += listed.size()
            if count > _MOST_FILES:
                raise _NotRepeatableError(f"the DataFrame reads more than {_MOST_FILES} files")
            files = _current(relation, list(_items(listed)))
            if files is None:
                raise _NotRepeatableError("the files have changed since Spark listed them")
            if any(changed / 1000 > now - _SETTLED_SECONDS for _, _, changed in files):
                raise _NotRepeatableError(f"a file was written less than {_SETTLED_SECONDS:g} seconds before the fit")
            found.append(files)
        elif name not in _NODES:
            kind = name.rpartition(".")[2]
            raise _NotRepeatableError(
                _NOT_FILES.get(kind, f"Spark's plan has a {kind}, which may give other rows each time")
            )
        elif not all(map(_known, _items(node.expressions()))):
            raise _NotRepeatableError(_USER_DEFINED)
    return tuple(found)


def _current(relation: Any, listed: list[Any]) -> tuple[tuple[str, int, int], ...] | None:
    """The files of a relation as they are now; None: they are others than those ``listed``."""
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


def _known(expression: Any) -> bool:
    """Whether it, and all that is in it, is Spark's own, and depends on nothing but its inputs."""
    name = _class(expression)
    own = name.startswith(_EXPRESSIONS) and not any(each in name.removeprefix(_EXPRESSIONS) for each in _FOREIGN)
    if not own and not (name == f"{_EXPRESSIONS}ScalaUDF" and _class(expression.function()).startswith(_ML_FUNCTIONS)):
        return False
    return all(map(_known, _items(expression.children())))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    """Of a sequence of Scala."""
    return (sequence.apply(index) for index in range(sequence.size()))


def _class(instance: Any) -> str:
    return str(instance.getClass().getName())


@dataclass(frozen=True)
class Kept:
    """A row set that was left on executors. ``places``: of each rank, see :mod:`sparkdl_comm.job.places`; empty: unknown."""

    name: str
    source: Source
    places: tuple[str, ...] = ()


class RowSets:
    """The row sets that fits of this process have left on executors. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: list[Kept] = []  # the newest last

    def find(self, source: Source) -> Kept | None:
        """The newest set of these data."""
        with self._lock:
            return next((each for each in reversed(self._sets) if each.source.same(source)), None)

    def add(self, kept: Kept) -> None:
        with self._lock:
            here = [each for each in self._sets if each.source.application == kept.source.application]
            self._sets = [*here, kept][-_MOST_SETS:]

    def forget(self, kept: Kept) -> None:
        with self._lock:
            self._sets = [each for each in self._sets if each is not kept]


ROW_SETS = RowSets()


def with_row_sets(run: Run, rows: DataFrame, partitions: DataFrame) -> Callable[[TrainSpec], Trained]:
    """``run`` with ``partitions`` of ``rows``, or, if the same rows are on the executors' disks, with as many partitions of
    nothing. What is read is left there, if it can be known when it is the same. Reports say why rows were read."""

    spark = rows.sparkSession

    def run_set(spec: TrainSpec) -> Trained:
        if spec.conf.data_cache != "disk":
            return _because(f"{PREFIX}data.cache={spec.conf.data_cache} keeps rows for one fit", *run(partitions, spec))
        source = source_of(rows, spec.rows, spec.world)
        if isinstance(source, str):
            return _because(source, *run(partitions, spec))
        known, why = ROW_SETS.find(source), "no earlier fit of this application left these rows on the executors' disks"
        if known is not None:
            try:
                return run(_nothing(spark, spec.world, known), replace(spec, row_set=RowSet(known.name, there=True)))
            except RowsGoneError as gone:
                ROW_SETS.forget(known)
                if str(gone):
                    _log.warning("rows that an earlier fit kept cannot be used, and are read again: %s", gone)
                    why = f"the rows that an earlier fit kept cannot be used: {gone}"
                else:
                    why = "the rows that an earlier fit kept are not all there, or not where the tasks ran"
                    _log.info("%s: they are read again", why)
                spec = replace(spec, attempt_id=secrets.token_hex(8), secret=secrets.token_bytes(32))
        name = secrets.token_hex(8)
        with JobTag(spark) as tag:
            tensors, reports = run(partitions, replace(spec, row_set=RowSet(name, there=False)))
        # Files that were changed meanwhile may have been read before or after.
        if all(report.data["kept"] for report in reports) and source_of(rows, spec.rows, spec.world) == source:
            ROW_SETS.add(Kept(name, source, _places(spark, tag, reports)))
        return _because(why, tensors, reports)

    return run_set


def _because(why: str, tensors: dict[str, torch.Tensor], reports: list[RankReport]) -> Trained:
    """Return the run's results with the reason why rows were read in each report."""
    return tensors, [replace(report, data={**report.data, "why_read": why}) for report in reports]


def _nothing(spark: SparkSession, world: int, known: Kept) -> DataFrame:
    """Partitions for the ranks whose rows are there; where these are, if that is known."""
    if known.places:
        with suppress(Py4JError):
            return partitions_at(spark, known.places)
    return spark.range(0, world, 1, world)


def _places(spark: SparkSession, tag: JobTag, reports: Sequence[RankReport]) -> tuple[str, ...]:
    with suppress(Py4JError):
        ran = ran_on(spark, tag, len(reports))
        places = [ran.get(report.data["place"], "") for report in sorted(reports, key=lambda report: report.rank)]
        return tuple(places) if all(places) else ()
    return ()
