"""Columns of ML Vectors. Each row is kept in one of two forms, which depends on the row alone.

Arrow has a Vector as a struct that ends with size (null if the Vector is dense), indices and values. A rank keeps a row
as *words*, int32 with the bits of float32, or int64 with those of float64 if the tensor's type needs more precision:

- A whole row has a word for each element.
- A row of pairs has two words for each stored element: its index, and its value. These are the sparse Vectors of at
  least :data:`_MIN_WIDTH` elements that take at most half the memory so. For a sparse tensor, all rows are pairs,
  without zeros.

So a row is a list of words, and is kept, written and exchanged as a row of variable length. If all rows are whole, the
column is a plain tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from sparkdl_comm.data.fields import Field

#: Minimum size of a Vector that becomes pairs, unless the tensor is sparse.
_MIN_WIDTH = 256


def to_lists(column: pa.StructArray) -> pa.Array:
    """Return the Vectors as lists of numbers, with the zeros of sparse ones; null stays null."""
    *_, sizes, _, values = column.flatten()  # null where the row is
    if sizes.null_count == len(sizes):
        return values
    lengths = vector_sizes(column)
    starts = np.cumsum(lengths) - lengths
    places, numbers = _stored_elements(column)
    filled = np.zeros(lengths.sum(), numbers.dtype)
    filled[np.repeat(starts, _count_stored(column)) + places] = numbers
    null = column.is_null().to_numpy(zero_copy_only=False)
    offsets = pa.array(np.append(starts, lengths.sum()), pa.int64(), mask=np.append(null, False))
    return pa.LargeListArray.from_arrays(offsets, pa.array(filled))


def vector_sizes(column: pa.StructArray) -> NDArray[np.int64]:
    """Return the size of each Vector, int64 ``[rows]``; 0 for null."""
    *_, sizes, _, _ = column.flatten()
    return np.where(_is_dense(column), _count_stored(column), sizes.fill_null(0).to_numpy()).astype(np.int64)


def distinct_sizes(column: pa.StructArray) -> set[int]:
    """Return the distinct sizes of the Vectors that are not null."""
    return set(np.unique(vector_sizes(column.drop_null())).tolist())


def _count_stored(column: pa.StructArray) -> NDArray[np.int64]:
    """Return the number of stored values of each Vector; 0 for null."""
    lengths: NDArray[Any] = pc.list_value_length(column.flatten()[-1]).fill_null(0).to_numpy()
    return lengths.astype(np.int64)


def _stored_elements(column: pa.StructArray) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the index in its Vector, and the value, of each stored value of all Vectors."""
    *_, indices, values = column.flatten()
    counts = _count_stored(column)
    # dense rows: 0, 1, …; sparse rows: their indices
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    within[np.repeat(~_is_dense(column), counts)] = indices.flatten().to_numpy()
    return within, values.flatten().to_numpy()


def _is_dense(column: pa.StructArray) -> NDArray[np.bool_]:
    *_, sizes, _, _ = column.flatten()
    is_dense: NDArray[np.bool_] = sizes.is_null().to_numpy(zero_copy_only=False)
    return is_dense


def count_words(field: Field, column: pa.StructArray) -> NDArray[np.int64]:
    """Return the number of words of each row, int64 ``[rows]``. There are no nulls."""
    stored = _count_stored(column)
    if field.dtype == "sparse":
        ends = np.append(0, np.cumsum(stored))
        return 2 * np.diff(np.append(0, np.cumsum(column.flatten()[-1].flatten().to_numpy() != 0))[ends])
    sizes = vector_sizes(column)
    return np.where(_is_dense(column) | (sizes < _MIN_WIDTH) | (4 * stored > sizes), sizes, 2 * stored)


def are_whole(field: Field, lengths: NDArray[np.int64], width: int) -> bool:
    """Return whether all rows with these numbers of words are whole. ``width``: size of the Vectors."""
    return field.dtype != "sparse" and bool((lengths == width).all())


def to_words(field: Field, column: pa.StructArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the words of all rows, and the number of words of each row. There are no nulls."""
    lengths, sizes = count_words(field, column), vector_sizes(column)
    is_whole = lengths == sizes if field.dtype != "sparse" else np.zeros(len(lengths), bool)
    words = np.empty(lengths.sum(), _word_types(field)[0])
    of_whole = np.repeat(is_whole, lengths)
    words[of_whole] = _bits(field, to_lists(column.filter(pa.array(is_whole))).flatten().to_numpy())
    places, values = _stored_elements(column.filter(pa.array(~is_whole)))
    if field.dtype == "sparse":
        places, values = places[values != 0], values[values != 0]
    words[~of_whole] = np.stack([places, _bits(field, values)], 1).reshape(-1)
    return words, lengths


def whole_words(field: Field, rows: torch.Tensor) -> torch.Tensor:
    """Return the words of the rows of a tensor ``[rows, …]``, whose numbers are those of the field's type. They share
    its memory if that type is float32 or float64."""
    index_type, value_type = (torch.int64, torch.float64) if field.is_wide else (torch.int32, torch.float32)
    return rows.reshape(-1).to(value_type).view(index_type)


def to_tensor(field: Field, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the rows as the model's argument, ``[rows, width]`` or of the field's shape, dense or sparse.

    :param words: of all rows, on any device.
    :param lengths: number of words of each row, int64 ``[rows]``.
    """
    assert field.width is not None
    count, shape, device = len(lengths), field.shape or (field.width,), words.device
    is_whole = lengths == field.width if field.dtype != "sparse" else torch.zeros(count, dtype=torch.bool)
    of_whole = torch.repeat_interleave(is_whole, lengths).to(device)
    value_type = torch.float32 if words.dtype == torch.int32 else torch.float64
    pairs = words[~of_whole].reshape(-1, 2)
    rows = torch.repeat_interleave(torch.arange(count), (lengths // 2).masked_fill(is_whole, 0)).to(device)
    places, numbers = pairs[:, 0].long(), pairs[:, 1].contiguous().view(value_type)
    if field.dtype == "sparse":
        indices = torch.stack([rows, *torch.unravel_index(places, shape)])
        return torch.sparse_coo_tensor(indices, numbers, (count, *shape), is_coalesced=True, check_invariants=False)
    dtype = getattr(torch, field.type_of(np.dtype(np.float32)).name)
    dense = torch.zeros((count, field.width), dtype=dtype, device=device)
    dense[is_whole.to(device)] = words[of_whole].view(value_type).to(dtype).reshape(-1, field.width)
    dense[rows, places] = numbers.to(dtype)
    return dense.reshape(count, *shape)


def _bits(field: Field, numbers: NDArray[Any]) -> NDArray[Any]:
    index_type, value_type = _word_types(field)
    with np.errstate(over="ignore"):  # the inspection reports infinite values
        return numbers.astype(value_type, copy=False).view(index_type)


def _word_types(field: Field) -> tuple[type[np.generic], type[np.generic]]:
    return (np.int64, np.float64) if field.is_wide else (np.int32, np.float32)
