"""Arrow columns as numpy arrays: numbers, and arrays of them, nested to any depth, of one length at each depth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl_comm.data import sparse, vectors
from sparkdl_comm.data.decoding import decoded
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError


def read(field: Field, column: pa.Array) -> np.ndarray | Ragged:
    """All rows of a batch of numbers, arrays, ML Vectors or encoded values, ``[rows, …]``, of the field's type and shape; a
    view where possible. Those of a field with a ``collate`` may differ in length.

    :raises InputError: null rows or elements (with their count), rows of different lengths, or of another length than the
        field's shape takes; as :func:`sparkdl_comm.data.decoding.decoded`.
    """
    if field.decode is not None:
        column = decoded(field, column)
    elif pa.types.is_struct(column.type):
        field = sparse.chosen(field, column)
        if field.width is not None:
            check_fits(field, (field.width,))
        column = vectors.lists(column) if field.width is None else sparse.pairs(field, column)
    refuse_nulls(field, null_rows(column), len(column))
    found = lengths(column)[1 if field.is_ragged else 0 :]
    if any(len(level) > 1 for level in found):
        raise InputError(f"{field}: arrays of different lengths in {len(column)} rows: {shown(found)}")
    return Ragged.of(field, *ragged(column)) if field.is_ragged else shaped(field, values(column))


def refuse_nulls(field: Field, nulls: int, rows: int) -> None:
    """Refuses rows of a batch that are null or have a null element.

    :param nulls: how many of the ``rows`` are.
    :raises InputError: there are some.
    """
    if nulls:
        raise InputError(
            f"{nulls} of {rows} rows of a batch have null features (or a null element in them), in {field}: drop or"
            " fill them first, e.g. with df.dropna()"
        )


def shaped(field: Field, rows: np.ndarray) -> np.ndarray:
    """``rows`` of the field's type and shape.

    :raises InputError: its shape does not take them.
    """
    if len(rows):
        check_fits(field, rows.shape[1:])
    dtype = field.type_of(rows.dtype)
    return rows.astype(dtype, copy=False).reshape(len(rows), *field.row_shape(rows.shape[1:], dtype))


def check_fits(field: Field, shape: tuple[int, ...]) -> None:
    """Check that the field's shape takes rows of ``shape``.

    :raises InputError: it does not.
    """
    if not field.fits(shape):
        raise InputError(f"inputShapes: {list(field.shape or ())} does not take what is in {field}: {shape}")


def null_rows(column: pa.Array) -> int:
    """How many rows are null or have a null element."""
    return int(rows_with(column, is_null).sum())


def rows_with(column: pa.Array, bad: Callable[[pa.Array], np.ndarray]) -> np.ndarray:
    """Rows, bool ``[rows]``, in which ``bad`` is true: of the row itself or of anything in it.

    :param bad: bool for each element of an array, of lists or of numbers.
    """
    found = bad(column)
    if not is_list(column.type):
        return found
    inner = rows_with(column.flatten(), bad)
    if inner.any():
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
        count = np.concatenate([[0], np.cumsum(inner)])[ends]
        found = found | (np.diff(count, prepend=0) > 0)
    return found


def first_with(column: pa.Array, bad: Callable[[pa.Array], np.ndarray]) -> float | None:
    """The first number for which ``bad`` is true, as :func:`rows_with` has it; None if there is none."""
    while is_list(column.type):
        column = column.flatten()
    found = column.filter(pa.array(bad(column)))
    return float(found[0].as_py()) if len(found) else None


def is_null(column: pa.Array) -> np.ndarray:
    """For :func:`rows_with`."""
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(zero_copy_only=False)


def lengths(column: pa.Array) -> list[set[int]]:
    """Lengths of the arrays that are not null, at each depth; nothing for numbers."""
    found = []
    while is_list(column.type):
        column = column.drop_null()
        found.append({int(length) for length in np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))})
        column = column.flatten()
    return found


def shown(found: list[set[int]]) -> str:
    """The lengths at the depth where they differ, or the first few of them."""
    different = next(level for level in found if len(level) > 1)
    return ", ".join(str(length) for length in sorted(different)[:8])


def values(column: pa.Array) -> np.ndarray:
    """A column without nulls, of one length at each depth: ``[rows, length, …]``; a view where possible."""
    shape = [len(column)]
    while is_list(column.type):
        outer, kind, column = len(column), column.type, column.flatten()
        fixed = pa.types.is_fixed_size_list(kind)  # then the length is known where there are no rows, too
        shape.append(kind.list_size if fixed else len(column) // outer if outer else 0)
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def ragged(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """All elements of lists without nulls, ``[elements, …]``, a view where possible; their lengths, int64 ``[rows]``."""
    return values(column.flatten()), pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
