"""ML Vectors in Arrow: dense and sparse ones, null rows, slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import DenseVector, SparseVector, Vectors, VectorUDT

from sparkdl_comm.data import arrow
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.vectors import to_lists
from sparkdl_comm.errors import InputError

KIND = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
ROWS = [
    *(Vectors.dense(1.0, 2.0, 3.0), None, Vectors.sparse(3, {1: 5.0}), Vectors.dense(), Vectors.sparse(2, {})),
    *(Vectors.sparse(4, {0: 1.0, 3: 2.0}), Vectors.dense(7.0)),
]


def column(rows: list[DenseVector | SparseVector | None]) -> pa.Array:
    stored = [None if row is None else VectorUDT().serialize(row) for row in rows]
    names = [field.name for field in KIND]
    return pa.array([None if row is None else dict(zip(names, row, strict=True)) for row in stored], KIND)


def expected(rows: list[Any]) -> list[Any]:
    return [None if row is None else row.toArray().tolist() for row in rows]


@pytest.mark.parametrize("start", range(len(ROWS) + 1))
def test_every_slice(start: int) -> None:
    for length in range(len(ROWS) - start + 1):
        part = column(ROWS).slice(start, length)
        assert to_lists(part).to_pylist() == expected(ROWS[start : start + length])


def test_as_features() -> None:
    rows = [Vectors.dense(1.0, 0.0), Vectors.sparse(2, {1: 3.0})]
    read = arrow.read(Field("featuresCol", "x"), column(rows))
    assert read.dtype == np.float32
    assert read.tolist() == [[1.0, 0.0], [0.0, 3.0]]
    with pytest.raises(InputError, match="1 of 3 rows of a batch have null features"):
        arrow.read(Field("featuresCol", "x"), column([*rows, None]))
    with pytest.raises(InputError, match="different lengths in 3 rows: 2, 4"):
        arrow.read(Field("featuresCol", "x"), column([*rows, Vectors.sparse(4, {})]))
