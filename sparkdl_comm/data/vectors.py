"""ML Vectors as Arrow holds them: structs of type (0 sparse, 1 dense), size, indices and values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def lists(column: pa.StructArray) -> pa.ListArray:
    """The same rows as lists of float64, sparse ones filled up with zeros; null stays null."""
    kinds, sizes, indices, values = column.flatten()  # null where the row is
    if kinds.null_count == len(kinds) or (kinds.drop_null().to_numpy() == 1).all():
        return values
    dense = kinds.fill_null(1).to_numpy() == 1
    stored = _lengths(values)
    lengths = np.where(dense, stored, sizes.fill_null(0).to_numpy())
    starts = np.cumsum(lengths) - lengths
    # the place of each stored value in its row: for dense rows 0, 1, …; for sparse ones what indices say
    within = np.arange(stored.sum()) - np.repeat(np.cumsum(stored) - stored, stored)
    within[np.repeat(~dense, stored)] = indices.flatten().to_numpy()
    filled = np.zeros(lengths.sum())
    filled[np.repeat(starts, stored) + within] = values.flatten().to_numpy()
    offsets = pa.array(np.append(starts, lengths.sum()), pa.int32(), mask=np.append(_nulls(column), False))
    return pa.ListArray.from_arrays(offsets, pa.array(filled))


def _lengths(column: pa.ListArray) -> np.ndarray:
    """Of each list; 0 for null."""
    return pc.list_value_length(column).fill_null(0).to_numpy()


def _nulls(column: pa.Array) -> np.ndarray:
    return column.is_null().to_numpy(zero_copy_only=False)
