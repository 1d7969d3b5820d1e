"""Conversion of Arrow columns to numpy arrays.

Columns hold numbers or arrays of numbers, nested to any depth. All arrays at one depth have the same length. The user's
``decode`` makes such columns of encoded values, images or texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl_comm.data import vectors
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError


def read(field: Field, column: pa.Array) -> NDArray[Any] | Ragged:
    """Return all rows of a batch as an array ``[rows, …]`` of the field's type and shape.

    Accepts numbers, arrays, ML Vectors and encoded values. Returns a view where possible. Rows of a field with
    ``collate`` may differ in length.

    :raises InputError: rows or elements are null (with their count), rows differ in length, or the field's shape does
        not fit. Also as :func:`decode_column`.
    """
    if field.decode is not None:
        column = decode_column(field, column)
    refuse_nulls(field, count_null_rows(column), len(column))
    is_vector = pa.types.is_struct(column.type)
    lengths = [vectors.distinct_sizes(column)] if is_vector else distinct_lengths(column)[1 if field.is_ragged else 0 :]
    if any(len(level) > 1 for level in lengths):
        raise InputError(f"{field}: arrays of different lengths in {len(column)} rows: {format_lengths(lengths)}")
    if is_vector:
        return _read_vectors(field, column, max(lengths[0], default=0))
    return Ragged.of(field, *to_ragged(column)) if field.is_ragged else cast_rows(field, to_array(column))


def _read_vectors(field: Field, column: pa.StructArray, width: int) -> NDArray[Any] | Ragged:
    """Return Vectors without nulls, all of size ``width``, as :func:`read` does."""
    check_fits(field, (width,))
    if vectors.are_whole(field, vectors.count_words(field, column), width):
        return cast_rows(field, to_array(vectors.to_lists(column)))
    return Ragged.of(replace(field, width=width), *vectors.to_words(field, column))


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


#: Approximate bytes of decoded values per part of a batch.
_PART_BYTES = 32 << 20
#: Rows in the first part, which shows how large decoded rows are.
_FIRST_ROWS = 8


def decode_batch(batch: pa.RecordBatch, rows: RowFormat) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in parts with decoded inputs. Decoded values may be large, so each part has a limited size.

    :raises InputError: as :func:`decode_column` does.
    """
    encoded = [(index, field) for index, field in enumerate(rows.inputs) if field.decode is not None]
    if not encoded:
        yield batch
        return
    start, size = 0, _FIRST_ROWS
    while start < batch.num_rows:
        part = batch.slice(start, size)
        for index, field in encoded:
            name = f"input{index}"
            part = part.set_column(part.schema.names.index(name), name, decode_column(field, part[name]))
        yield part
        start += size
        size = max(1, _PART_BYTES * part.num_rows // max(1, part.nbytes))


def decode_column(field: Field, column: pa.Array) -> pa.Array:
    """Return the results of ``field.decode`` for each value, as numbers or nested lists of them; null stays null.

    :raises InputError: decode raises, or returns something other than numbers, or arrays of different shapes. If the
        field has ``collate``, only the shapes behind the first dimension must agree, and there must be a first
        dimension.
    """
    arrays = [None if value is None else _decode_value(field, value) for value in column.to_pylist()]
    usable = [array for array in arrays if array is not None]
    if not usable:
        return pa.nulls(len(column), pa.list_(pa.float32()))
    if field.collate is not None:
        return _to_ragged(field, arrays, usable)
    shapes = sorted({array.shape for array in usable})
    if len(shapes) > 1:
        shown = ", ".join(str(list(shape)) for shape in shapes[:8])
        raise InputError(
            f"{field} returns arrays of different shapes: {shown}; it must give all rows the same shape, or set collate_fn"
        )
    numbers = _to_lists(np.stack(usable))
    if len(usable) == len(arrays):
        return numbers
    places = iter(range(len(usable)))
    return numbers.take(pa.array([None if array is None else next(places) for array in arrays], pa.int64()))


def _to_ragged(field: Field, arrays: list[NDArray[Any] | None], usable: list[NDArray[Any]]) -> pa.Array:
    if len({array.shape[1:] for array in usable}) > 1 or not all(array.ndim for array in usable):
        shown = ", ".join(str(list(shape)) for shape in sorted({array.shape for array in usable})[:8])
        raise InputError(
            f"{field} returns arrays of shapes {shown}. With collate_fn, only their first dimension may differ"
        )
    ends = np.cumsum([0 if array is None else len(array) for array in arrays])
    nulls = np.array([*(array is None for array in arrays), False])
    offsets = pa.array(np.append(0, ends), pa.int64(), mask=nulls)
    return pa.LargeListArray.from_arrays(offsets, _to_lists(np.concatenate(usable)))


def _to_lists(rows: NDArray[Any]) -> pa.Array:
    """Return ``[rows, …]`` as an Arrow array of numbers, or of nested lists of fixed size."""
    numbers: pa.Array = pa.array(rows.reshape(-1))
    for length in reversed(rows.shape[1:]):
        numbers = pa.FixedSizeListArray.from_arrays(numbers, length)
    return numbers


def _decode_value(field: Field, value: Any) -> NDArray[Any]:
    assert field.decode is not None
    try:
        array = np.asarray(field.decode(value))
    except Exception as error:
        raise InputError(
            f"{field} raised {type(error).__name__} for a value of length {len(value)}: {error}"
        ) from error
    if array.dtype.kind not in "biuf" or array.size == 0:
        raise InputError(f"{field} must return numbers, not an array of {array.dtype} of shape {list(array.shape)}")
    return array.astype(np.int8) if array.dtype.kind == "b" else array
