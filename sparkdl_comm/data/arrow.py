"""Conversion of Arrow columns to numpy arrays.

Columns hold numbers or arrays of numbers, nested to any depth. All arrays at one depth have the same length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl_comm.data import sparse, vectors
from sparkdl_comm.data.decoding import decode_column
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError


def read(field: Field, column: pa.Array) -> NDArray[Any] | Ragged:
    """Return all rows of a batch as an array ``[rows, …]`` of the field's type and shape.

    Accepts numbers, arrays, ML Vectors and encoded values. Returns a view where possible. Rows of a field with
    ``collate`` may differ in length.

    :raises InputError: rows or elements are null (with their count), rows differ in length, or the field's shape does
        not fit. Also as :func:`sparkdl_comm.data.decoding.decode_column`.
    """
    if field.decode is not None:
        column = decode_column(field, column)
    elif pa.types.is_struct(column.type):
        field = sparse.with_width(field, column)
        if field.width is not None:
            check_fits(field, (field.width,))
        column = vectors.to_lists(column) if field.width is None else sparse.to_pairs(field, column)
    refuse_nulls(field, count_null_rows(column), len(column))
    lengths = distinct_lengths(column)[1 if field.is_ragged else 0 :]
    if any(len(level) > 1 for level in lengths):
        raise InputError(f"{field}: arrays of different lengths in {len(column)} rows: {format_lengths(lengths)}")
    return Ragged.of(field, *to_ragged(column)) if field.is_ragged else cast_rows(field, to_array(column))


def refuse_nulls(field: Field, nulls: int, rows: int) -> None:
    """Check that no row of a batch is null or has a null element.

    :param nulls: number of such rows among the ``rows`` of the batch.
    :raises InputError: ``nulls`` is not 0.
    """
    if nulls:
        raise InputError(
            f"{nulls} of {rows} rows of a batch have null features (or a null element in them), in {field}: drop or"
            " fill them first, e.g. with df.dropna()"
        )


def cast_rows(field: Field, rows: NDArray[Any]) -> NDArray[Any]:
    """Return ``rows`` in the field's type and shape.

    :raises InputError: the field's shape does not fit.
    """
    if len(rows):
        check_fits(field, rows.shape[1:])
    dtype = field.type_of(rows.dtype)
    return rows.astype(dtype, copy=False).reshape(len(rows), *field.row_shape(rows.shape[1:], dtype))


def check_fits(field: Field, shape: tuple[int, ...]) -> None:
    """Check that rows of ``shape`` have as many values as the field's shape.

    :raises InputError: they do not.
    """
    if not field.fits(shape):
        raise InputError(f"inputShapes: {list(field.shape or ())} does not fit the rows of {field}, of shape {shape}")


def count_null_rows(column: pa.Array) -> int:
    """Return the number of rows that are null or have a null element."""
    return int(find_rows(column, is_null).sum())


def find_rows(column: pa.Array, test: Callable[[pa.Array], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return a bool array ``[rows]``: true where ``test`` is true for the row or for anything in it.

    :param test: function from an array of lists or numbers to bool per element.
    """
    is_bad = test(column)
    if not is_list(column.type):
        return is_bad
    inner = find_rows(column.flatten(), test)
    if inner.any():
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
        count = np.concatenate([[0], np.cumsum(inner)])[ends]
        is_bad = is_bad | (np.diff(count, prepend=0) > 0)
    return is_bad


def find_first(column: pa.Array, test: Callable[[pa.Array], NDArray[np.bool_]]) -> float | None:
    """Return the first number for which ``test`` is true, at any depth, or None. See :func:`find_rows`."""
    while is_list(column.type):
        column = column.flatten()
    bad_numbers = column.filter(pa.array(test(column)))
    return float(bad_numbers[0].as_py()) if len(bad_numbers) else None


def is_null(column: pa.Array) -> NDArray[np.bool_]:
    """Return a bool array: true for null elements. A test for :func:`find_rows`."""
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def distinct_lengths(column: pa.Array) -> list[set[int]]:
    """Return the distinct lengths of the non-null arrays at each depth; an empty list for numbers."""
    levels = []
    while is_list(column.type):
        column = column.drop_null()
        levels.append(
            {int(length) for length in np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))}
        )
        column = column.flatten()
    return levels


def format_lengths(levels: list[set[int]]) -> str:
    """Return the distinct lengths at the first depth where they differ, at most 8, as text."""
    different = next(level for level in levels if len(level) > 1)
    return ", ".join(str(length) for length in sorted(different)[:8])


def to_array(column: pa.Array) -> NDArray[Any]:
    """Return a column as an array ``[rows, length, …]``, a view where possible.

    :param column: without nulls, with one length at each depth.
    """
    shape = [len(column)]
    while is_list(column.type):
        outer, kind, column = len(column), column.type, column.flatten()
        fixed = pa.types.is_fixed_size_list(kind)  # its length is known even without rows
        shape.append(kind.list_size if fixed else len(column) // outer if outer else 0)
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def to_ragged(column: pa.Array) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return all elements of lists without nulls, ``[elements, …]``, and the lengths of the lists, int64 ``[rows]``.

    The elements are a view where possible.
    """
    return to_array(column.flatten()), pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
