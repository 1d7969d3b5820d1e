"""Columns of ML Vectors, as lists of numbers, or as pairs of index and value.

Arrow has a Vector as a struct: type (0 sparse, 1 dense), size, indices and values. Sparse Vectors of one width are kept
as pairs until they become a batch. A pair is two int32: the index, and the bits of a float32. If the tensor's type needs
more precision, a pair is two int64: the index, and the bits of a float64. A row is a list of pairs, so it is kept,
written and exchanged as a row of variable length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import InputError


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
    null = column.is_null().to_numpy(zero_copy_only=False)
    offsets = pa.array(np.append(starts, lengths.sum()), pa.int64(), mask=np.append(null, False))
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


#: Minimum size of a Vector that may be kept as pairs.
_MIN_WIDTH = 256


def saves_memory(width: int, stored: float) -> bool:
    """Return True if Vectors are large, and pairs take at most half their memory. ``stored``: mean values per row."""
    return width >= _MIN_WIDTH and 4 * stored <= width


def with_width(field: Field, column: pa.StructArray) -> Field:
    """Return ``field``, with the Vectors' width set if they should be kept as pairs.

    They should if the tensor is sparse, or if pairs are smaller (:func:`saves_memory`).
    """
    rows = column.drop_null()
    if not len(rows):
        return field
    sizes = vector_sizes(rows)
    width, stored = int(sizes[0]), count_stored(rows).mean()
    if (sizes != width).any() or not (field.dtype == "sparse" or saves_memory(width, stored)):
        return field
    return replace(field, width=width)


def to_pairs(field: Field, column: pa.StructArray) -> pa.LargeListArray:
    """Return the Vectors as lists of pairs, without zeros; null stays null.

    :raises InputError: a Vector does not have the field's width.
    """
    sizes = vector_sizes(column)
    null = column.is_null().to_numpy(zero_copy_only=False)
    is_other_size = (sizes != field.width) & ~null
    if is_other_size.any():
        raise InputError(
            f"{field}: {int(is_other_size.sum())} of {len(column)} rows of a batch are Vectors of"
            f" {sizes[is_other_size][0]} elements, others of {field.width}. All rows must have Vectors of one size"
        )
    places, stored = stored_elements(column)
    index_type, value_type = _pair_types(field)
    is_nonzero = stored != 0
    pairs = np.empty((int(is_nonzero.sum()), 2), index_type)
    pairs[:, 0] = places[is_nonzero]
    with np.errstate(over="ignore"):  # the inspection reports infinite values
        pairs[:, 1] = stored[is_nonzero].astype(value_type).view(index_type)
    counts = np.bincount(np.repeat(np.arange(len(column)), count_stored(column))[is_nonzero], minlength=len(column))
    offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int64(), mask=np.append(null, False))
    return pa.LargeListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(pa.array(pairs.reshape(-1)), 2))


def pair_values(field: Field, column: pa.LargeListArray) -> pa.LargeListArray:
    """Return the values of the pairs as lists. There are no nulls."""
    _, value_type = _pair_types(field)
    flat = column.flatten().flatten().to_numpy()[1::2].copy().view(value_type)
    lengths = np.diff(column.offsets.to_numpy())
    return pa.LargeListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int64()), pa.array(flat))


def to_tensor(field: Field, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the rows as one tensor for the model, dense or sparse: ``[rows, width]``, or rows of the field's shape.

    :param values: pairs of index and value of all rows, one row after another, ``[pairs, 2]`` on any device.
    :param lengths: number of pairs of each row, int64 ``[rows]``.
    """
    assert field.width is not None
    count, shape = len(lengths), field.shape or (field.width,)
    rows = torch.repeat_interleave(torch.arange(count), lengths).to(values.device)
    places = values[:, 0].long()
    value_type = torch.float32 if values.dtype == torch.int32 else torch.float64
    numbers = values[:, 1].contiguous().view(value_type)
    if field.dtype == "sparse":
        indices = torch.stack([rows, *torch.unravel_index(places, shape)])
        return torch.sparse_coo_tensor(indices, numbers, (count, *shape), is_coalesced=True, check_invariants=False)
    dense = torch.zeros(
        (count, field.width), dtype=getattr(torch, field.type_of(np.dtype(np.float32)).name), device=values.device
    )
    dense[rows, places] = numbers.to(dense.dtype)
    return dense.reshape(count, *shape)


def _pair_types(field: Field) -> tuple[type[np.generic], type[np.generic]]:
    return (np.int64, np.float64) if field.is_wide else (np.int32, np.float32)
