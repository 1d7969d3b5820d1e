"""Decoding of columns with the user's ``decode``: encoded values, images or texts to Arrow columns of numbers.

Sparse Vectors become pairs here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl_comm.data import sparse
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.errors import InputError

#: Approximate bytes of decoded values per part of a batch.
_PART_BYTES = 32 << 20
#: Rows in the first part, which shows how large decoded rows are.
_FIRST_ROWS = 8


def decode_batch(batch: pa.RecordBatch, rows: RowFormat) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in parts with decoded inputs. Decoded values may be large, so each part has a limited size.

    :raises InputError: as :func:`decode_column` and :func:`sparse.to_pairs` do.
    """
    for index, field in enumerate(rows.inputs):
        if field.width is not None:
            batch = _replace_input(batch, index, sparse.to_pairs(field, batch[f"input{index}"]))
    encoded = [(index, field) for index, field in enumerate(rows.inputs) if field.decode is not None]
    if not encoded:
        yield batch
        return
    start, size = 0, _FIRST_ROWS
    while start < batch.num_rows:
        part = batch.slice(start, size)
        for index, field in encoded:
            part = _replace_input(part, index, decode_column(field, part[f"input{index}"]))
        yield part
        start += size
        size = max(1, _PART_BYTES * part.num_rows // max(1, part.nbytes))


def _replace_input(batch: pa.RecordBatch, index: int, column: pa.Array) -> pa.RecordBatch:
    name = f"input{index}"
    return batch.set_column(batch.schema.names.index(name), name, column)


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
