"""Arrow structs of ML Vectors: type (0 sparse, 1 dense), size, indices and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def to_lists(column: pa.StructArray) -> pa.LargeListArray:
    """Return the Vectors as lists of float64, with the zeros of sparse ones; null stays null."""
    kinds, _, _, values = column.flatten()  # null where the row is
    if kinds.null_count == len(kinds) or (kinds.drop_null().to_numpy() == 1).all():
        return values
    lengths = vector_sizes(column)
    starts = np.cumsum(lengths) - lengths
    places, numbers = stored_elements(column)
    filled = np.zeros(lengths.sum())
    filled[np.repeat(starts, count_stored(column)) + places] = numbers
    offsets = pa.array(np.append(starts, lengths.sum()), pa.int64(), mask=np.append(_is_null(column), False))
    return pa.LargeListArray.from_arrays(offsets, pa.array(filled))


def vector_sizes(column: pa.StructArray) -> NDArray[np.int64]:
    """Return the size of each Vector, int64 ``[rows]``; 0 for null."""
    _, declared, _, _ = column.flatten()
    return np.where(_is_dense(column), count_stored(column), declared.fill_null(0).to_numpy()).astype(np.int64)


def count_stored(column: pa.StructArray) -> NDArray[Any]:
    """Return the number of stored values of each Vector; 0 for null."""
    counts: NDArray[Any] = pc.list_value_length(column.flatten()[3]).fill_null(0).to_numpy()
    return counts


def stored_elements(column: pa.StructArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the index in its Vector, and the value, of each stored value of all Vectors."""
    _, _, indices, values = column.flatten()
    counts = count_stored(column)
    # dense rows: 0, 1, …; sparse rows: their indices
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    within[np.repeat(~_is_dense(column), counts)] = indices.flatten().to_numpy()
    return within, values.flatten().to_numpy()


def _is_dense(column: pa.StructArray) -> NDArray[np.bool_]:
    is_dense: NDArray[np.bool_] = column.flatten()[0].fill_null(1).to_numpy() == 1
    return is_dense


def _is_null(column: pa.Array) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls
