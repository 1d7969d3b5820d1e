"""What transform knows of the bytes of rows without reading them, and its warning where Spark does not limit them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import ArrayType, BinaryType, DataType, FloatType, StringType, StructField, StructType

from sparkdl_comm.data.fields import Field
from sparkdl_comm.job.arrow_batches import ROWS_PER_BATCH_KEY, warn_about_wide_rows
from sparkdl_comm.ml.columns import known_row_bytes

WIDTH = 100_000
VECTOR = Field("featuresCol", "x", width=0)
CODED = Field("featuresCol", "x", decode=bytes)
FLOATS = ArrayType(FloatType())
WIDE = torch.nn.Sequential(torch.nn.Linear(WIDTH, 1))
OTHER = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5))


@pytest.mark.parametrize(
    ("kind", "field", "module", "metadata", "expected"),
    [
        (FLOATS, Field("featuresCol", "x"), WIDE, {}, 4 * WIDTH),
        (FLOATS, Field("featuresCol", "x", shape=(7, 5)), OTHER, {}, 4 * 35),
        (FLOATS, Field("featuresCol", "x"), OTHER, {}, 0),
        (VectorUDT(), VECTOR, WIDE, {}, 8 * WIDTH),
        (VectorUDT(), VECTOR, OTHER, {"ml_attr": {"num_attrs": 5_000}}, 8 * 5_000),
        (VectorUDT(), replace(VECTOR, shape=(3, 500)), OTHER, {}, 8 * 1_500),
        (VectorUDT(), replace(VECTOR, dtype="sparse"), WIDE, {"ml_attr": {"num_attrs": WIDTH}}, 0),
        (BinaryType(), CODED, WIDE, {}, 4 * WIDTH),
        (BinaryType(), replace(CODED, shape=(3, 200, 200)), OTHER, {}, 4 * 120_000),
        (BinaryType(), CODED, OTHER, {}, None),
        (StringType(), CODED, OTHER, {}, 0),
    ],
)  # fmt: skip
def test_bytes_of_a_row(
    kind: DataType, field: Field, module: torch.nn.Module, metadata: dict[str, Any], expected: int | None
) -> None:
    df: Any = SimpleNamespace(schema=StructType([StructField("x", kind, metadata=metadata)]))
    assert known_row_bytes(df, [field], module) == expected


def test_a_wide_column_counts_beside_one_of_unknown_size() -> None:
    fields = [VECTOR, replace(CODED, name="y")]
    attributes = {"ml_attr": {"num_attrs": WIDTH}}
    columns = [StructField("x", VectorUDT(), metadata=attributes), StructField("y", BinaryType())]
    df: Any = SimpleNamespace(schema=StructType(columns))
    assert known_row_bytes(df, fields, OTHER) == 8 * WIDTH


def warned(row_bytes: int | None, **settings: str) -> list[str]:
    spark = SimpleNamespace(
        conf=SimpleNamespace(get={f"spark.sql.execution.arrow.{k}": v for k, v in settings.items()}.get)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_wide_rows(spark, row_bytes)
    return [str(each.message) for each in caught]


def test_the_warning_says_what_to_set() -> None:
    assert warned(8 * WIDTH) == [
        f"a row has up to 800000 bytes, and Spark sends 10000 rows to Python at once. Set {ROWS_PER_BATCH_KEY}=41 on this"
        " session."
    ]
    assert warned(None) == [
        "a row has encoded values of unknown size, and Spark sends 10000 rows to Python at once. Set"
        f" {ROWS_PER_BATCH_KEY}=256 on this session."
    ]
    assert "sends all rows" in warned(8 * WIDTH, maxRecordsPerBatch="0")[0]
    assert warned(0) == warned(1_000) == []
    assert warned(8 * WIDTH, maxRecordsPerBatch="41") == warned(None, maxRecordsPerBatch="1000") == [], "as it was set"
    assert warned(8 * WIDTH, maxBytesPerBatch="1") == warned(None, maxBytesPerBatch="1") == [], "Spark 4"
