"""Limits the Arrow batches in which Spark passes rows to Python, by bytes.

Spark itself limits only the rows of a batch: ``spark.sql.execution.arrow.maxRecordsPerBatch``, by default 10,000. A
batch is in memory as a whole, several times. So this module measures the first rows, and runs a job with wide rows in a
clone of the session that has a lower limit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField

from sparkdl_comm.job.session import is_classic

#: Approximate limit of a batch, in bytes.
BATCH_BYTES = 32 << 20
#: Spark's limit of rows per batch, and its default.
ROWS_PER_BATCH_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
_DEFAULT_ROWS = 10_000
#: Spark 4's limit of bytes per batch. Spark 3.5 has none.
_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
#: Number of rows to measure.
_MEASURED_ROWS = 4
#: Rows per batch when measuring the width would run a large part of the query twice.
_ROWS_IF_UNKNOWN = 256
_ROW_BYTES_IF_UNKNOWN = BATCH_BYTES // _ROWS_IF_UNKNOWN
#: Bytes of a number, and overhead of a row in addition to its arrays.
_NUMBER_BYTES = 8
#: Nodes of an optimized plan that return their first rows without reading all others.
_NARROW_NODES = frozenset(
    (
        *("Project", "Filter", "Union", "LocalRelation", "LogicalRDD", "LogicalRelation", "InMemoryRelation", "Range"),
        *("OneRowRelation", "LocalLimit", "GlobalLimit", "DataSourceV2ScanRelation", "Sample", "Generate"),
        *("SerializeFromObject", "DeserializeToObject", "MapPartitions", "MapElements", "ExternalRDD"),
    )
)

_VECTORS = (VectorUDT, OldVectorUDT)


@dataclass(frozen=True)
class Measure:
    """Size of a column's first rows.

    ``bytes``: bytes of the largest value. ``width``: elements of a Vector. ``stored``: mean number of elements that a
    Vector stores. Both are 0 if the column has no Vectors.
    """

    bytes: int
    width: int = 0
    stored: float = 0.0


def measure_columns(df: DataFrame, names: Sequence[str]) -> dict[str, Measure]:
    """Return the measures of the columns ``names``, by name.

    Runs a small job if a column has arrays, Vectors, binary or text. Runs none if the query would have to read all of
    its input for its first rows.
    """
    fields = [_find_field(df, name) for name in names]
    found = {field.name: Measure(_NUMBER_BYTES) for field in fields}
    variable = [field for field in fields if isinstance(field.dataType, (*_VECTORS, ArrayType, BinaryType, StringType))]
    if not variable:
        return found
    if not _is_narrow(df):
        return found | {field.name: _measure_from_metadata(field) for field in variable}
    sizes = [_measure_column(field).alias(f"m{index}") for index, field in enumerate(variable)]
    rows = df.select(*sizes).limit(_MEASURED_ROWS).collect()
    for index, field in enumerate(variable):
        seen = [row[f"m{index}"] for row in rows if row[f"m{index}"]["size"] is not None]
        if not seen:
            continue
        size = max(each["size"] for each in seen)
        if isinstance(field.dataType, _VECTORS):
            stored = [each["stored"] for each in seen]
            found[field.name] = Measure(_NUMBER_BYTES * size, size, sum(stored) / len(stored))
        else:
            found[field.name] = Measure(size * (_NUMBER_BYTES if isinstance(field.dataType, ArrayType) else 1))
    return found


def limit_batches(df: DataFrame, row_bytes: int) -> DataFrame:
    """Return ``df`` for a job whose Arrow batches have about :data:`BATCH_BYTES` at most.

    Leaves the user's session as it is. On Spark Connect, returns ``df`` itself, and warns if its rows are wide.

    :param row_bytes: approximate bytes of a row.
    """
    spark = df.sparkSession
    max_rows = int(spark.conf.get(ROWS_PER_BATCH_KEY, str(_DEFAULT_ROWS)) or _DEFAULT_ROWS)
    rows = max(1, BATCH_BYTES // max(1, row_bytes))
    if 0 < max_rows <= rows:
        return df
    if not is_classic(spark):
        warn_about_wide_rows(spark, row_bytes)
        return df
    session = spark._jsparkSession.cloneSession()
    session.conf().set(ROWS_PER_BATCH_KEY, str(rows))
    jvm: Any = spark._jvm
    sql = jvm.org.apache.spark.sql
    package = sql.classic if session.getClass().getName().startswith("org.apache.spark.sql.classic.") else sql
    plan = df._jdf.queryExecution().analyzed()
    return DataFrame(package.Dataset.ofRows(session, plan), spark)


def warn_about_wide_rows(spark: Any, row_bytes: int) -> None:
    """Warn if Spark is going to send rows of ``row_bytes`` to Python in batches that may not fit into memory.

    Spark 4 limits the bytes of a batch by itself; Spark 3.5 limits only its rows.
    """
    if row_bytes <= _ROW_BYTES_IF_UNKNOWN or spark.conf.get(_BYTES_KEY, None) is not None:
        return
    max_rows = int(spark.conf.get(ROWS_PER_BATCH_KEY, str(_DEFAULT_ROWS)) or _DEFAULT_ROWS)
    rows = BATCH_BYTES // row_bytes
    if not 0 < max_rows <= max(1, rows):
        warnings.warn(
            f"a row has about {row_bytes} bytes, and Spark sends {max_rows if max_rows > 0 else 'all'} rows to Python at once."
            f" Set {ROWS_PER_BATCH_KEY}={max(1, rows)} on this session.",
            stacklevel=3,
        )


def _measure_column(field: StructField) -> Column:
    """Return a struct of ``size`` and ``stored``, null where the column is null."""
    column, kind = F.col("`" + field.name.replace("`", "``") + "`"), field.dataType
    if isinstance(kind, _VECTORS):
        vector = F.unwrap_udt(column)
        stored = F.when(column.isNotNull(), F.size(vector["values"]))
        return F.struct(F.coalesce(vector["size"], stored).alias("size"), stored.alias("stored"))
    if isinstance(kind, ArrayType):
        inner: DataType = kind.elementType
        flat = column
        while isinstance(inner, ArrayType):
            flat, inner = F.flatten(flat), inner.elementType
        return F.struct(F.when(flat.isNotNull(), F.size(flat)).alias("size"))
    return F.struct(F.octet_length(column).alias("size"))


def _measure_from_metadata(field: StructField) -> Measure:
    """Return a column's bytes per row, as far as its metadata says it. Spark ML's transformers write it for vectors.

    Without metadata, a default.
    """
    width = field.metadata.get("ml_attr", {}).get("num_attrs", 0) if isinstance(field.dataType, _VECTORS) else 0
    return Measure(_NUMBER_BYTES * width or _ROW_BYTES_IF_UNKNOWN, width)


def _find_field(df: DataFrame, name: str) -> StructField:
    return next(field for field in df.schema.fields if field.name == name)


def _is_narrow(df: DataFrame) -> bool:
    """Return whether the query can return its first rows without reading all of its input."""
    if not is_classic(df.sparkSession):
        return True
    pending: list[Any] = [df._jdf.queryExecution().optimizedPlan()]
    while pending:
        node = pending.pop()
        if node.nodeName() not in _NARROW_NODES and node.getClass().getSimpleName() not in _NARROW_NODES:
            return False
        children = node.children()
        pending.extend(children.apply(index) for index in range(children.size()))
    return True
