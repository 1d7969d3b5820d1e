"""Limits the Arrow batches in which Spark passes rows to Python, by bytes.

Spark itself limits only the rows of a batch: ``spark.sql.execution.arrow.maxRecordsPerBatch``, by default 10,000. A
batch is in memory as a whole, several times. So this module measures the first rows, and runs a job with wide rows in a
clone of the session that has a lower limit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField

from sparkdl_comm.job.interrupt import describe_jobs
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
ROW_BYTES_IF_UNKNOWN = BATCH_BYTES // _ROWS_IF_UNKNOWN
#: Bytes of a number, and overhead of a row in addition to its arrays.
_NUMBER_BYTES = 8
#: Bytes of a stored element of a sparse Vector, with a margin: other rows may store more.
_SPARSE_BYTES = 24
#: Nodes of an optimized plan that return their first rows without reading all others.
_NARROW_NODES = frozenset(
    (
        *("Project", "Filter", "Union", "LocalRelation", "LogicalRDD", "LogicalRelation", "InMemoryRelation", "Range"),
        *("OneRowRelation", "LocalLimit", "GlobalLimit", "DataSourceV2ScanRelation", "Sample", "Generate"),
        *("SerializeFromObject", "DeserializeToObject", "MapPartitions", "MapElements", "ExternalRDD"),
    )
)

_VECTORS = (VectorUDT, OldVectorUDT)


def measure_columns(df: DataFrame, names: Sequence[str], as_stored: Sequence[str] = ()) -> dict[str, int]:
    """Return the bytes of the largest value in the first rows of the columns ``names``, by name.

    Runs a small job if a column has arrays, Vectors, binary or text. Runs none if the query would have to read all of
    its input for its first rows. Then, or if the values of all first rows are null, returns what metadata says, or a
    default.

    :param as_stored: names of the columns whose Vectors are sent as they are stored. Others are sent as arrays.
    """
    fields = [_find_field(df, name) for name in names]
    found = {field.name: _NUMBER_BYTES for field in fields}
    variable = [field for field in fields if isinstance(field.dataType, (*_VECTORS, ArrayType, BinaryType, StringType))]
    if not variable:
        return found
    found |= {field.name: _bytes_from_metadata(field) for field in variable}
    if not _is_narrow(df):
        return found
    sizes = [_count_bytes(field, field.name in as_stored).alias(f"m{index}") for index, field in enumerate(variable)]
    with describe_jobs(
        df.sparkSession, f"sparkdl_comm: measure the first rows of {', '.join(each.name for each in variable)}"
    ):
        rows = df.select(*sizes).limit(_MEASURED_ROWS).collect()
    for index, field in enumerate(variable):
        seen = [row[f"m{index}"] for row in rows if row[f"m{index}"] is not None]
        if seen:
            found[field.name] = max(seen)
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


def warn_about_wide_rows(spark: Any, row_bytes: int | None) -> None:
    """Warn if Spark is going to send rows to Python in batches that may not fit into memory.

    Spark 4 limits the bytes of a batch by itself; Spark 3.5 limits only its rows.

    :param row_bytes: largest bytes of a row, 0 if they are unknown. None: they are unknown, and the row has encoded
        values, such as images. Then warns only if the session has Spark's default limit.
    """
    max_rows = int(spark.conf.get(ROWS_PER_BATCH_KEY, str(_DEFAULT_ROWS)) or _DEFAULT_ROWS)
    if row_bytes is None:
        size, rows, is_wide = "a row has encoded values of unknown size", _ROWS_IF_UNKNOWN, max_rows == _DEFAULT_ROWS
    else:
        size, rows = f"a row has up to {row_bytes} bytes", max(1, BATCH_BYTES // max(1, row_bytes))
        is_wide = row_bytes > ROW_BYTES_IF_UNKNOWN and not 0 < max_rows <= rows
    if is_wide and spark.conf.get(_BYTES_KEY, None) is None:
        warnings.warn(
            f"{size}, and Spark sends {max_rows if max_rows > 0 else 'all'} rows to Python at once. Set"
            f" {ROWS_PER_BATCH_KEY}={rows} on this session.",
            stacklevel=3,
        )


def _count_bytes(field: StructField, is_stored: bool) -> Column:
    """Return the bytes of each value, null where the column is null.

    :param is_stored: a Vector is sent as it is stored, not as an array.
    """
    column, kind = F.col("`" + field.name.replace("`", "``") + "`"), field.dataType
    if isinstance(kind, _VECTORS):
        vector = F.unwrap_udt(column)
        stored = F.size(vector["values"])
        sparse = F.lit(_SPARSE_BYTES) * stored if is_stored else F.lit(_NUMBER_BYTES) * vector["size"]
        size = F.when(vector["size"].isNull(), F.lit(_NUMBER_BYTES) * stored).otherwise(sparse)
        return F.when(column.isNotNull(), size)
    if isinstance(kind, ArrayType):
        inner: DataType = kind.elementType
        flat = column
        while isinstance(inner, ArrayType):
            flat, inner = F.flatten(flat), inner.elementType
        return F.when(flat.isNotNull(), F.lit(_NUMBER_BYTES) * F.size(flat))
    return F.octet_length(column)


def width_from_metadata(field: StructField) -> int:
    """Return the size of a column's Vectors, which Spark ML's transformers write into its metadata. 0: unknown."""
    return int(field.metadata.get("ml_attr", {}).get("num_attrs", 0)) if isinstance(field.dataType, _VECTORS) else 0


def _bytes_from_metadata(field: StructField) -> int:
    """Return a column's bytes per row, as far as its metadata says it. Without metadata, a default."""
    return _NUMBER_BYTES * width_from_metadata(field) or ROW_BYTES_IF_UNKNOWN


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
