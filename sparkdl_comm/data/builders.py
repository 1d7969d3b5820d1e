"""Builders of a rank's columns. They place each batch's rows, then order rows with equal ids.

There is one builder for rows of one shape, and one for rows of different lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from sparkdl_comm.data import arrow, arrow_file, vectors
from sparkdl_comm.data.arrow_file import ColumnLayout
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.ragged import Ragged, offsets_of

#: Bytes of rows with equal ids that are compared in one step.
_COMPARED_BYTES = 32 << 20


class Builder(Protocol):
    """Builder of one column. Call :meth:`put` until all rows are there, then the other methods.

    ``array``: all elements. The first rows allocate it, unless it was set before to memory of the :meth:`layout`. While
    there are no rows, its type and shape may be set.
    """

    array: NDArray[Any]

    def layout(self, column: pa.Array) -> ColumnLayout | None:
        """Return the type and shape that rows such as those of ``column`` need. None: only other rows have
        elements."""

    def put(self, column: pa.Array, where: NDArray[np.intp]) -> None:
        """Store rows without nulls at the places ``where``."""

    def differs_from_next(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Compare each row in ``rows`` (numbers of rows) with the next row of the column.

        Return bool ``[len(rows)]``: true if the bytes differ. ``rows`` must not contain the last row.
        """

    def row_bytes(self, row: int) -> bytes:
        """Return the row's bytes."""

    def reorder(self, start: int, order: list[int]) -> None:
        """Reorder the rows from ``start`` on. ``order``: their numbers in the column, in the new order."""

    def build(self) -> torch.Tensor | Ragged:
        """Return the column, in the same memory."""


class ArrayBuilder:
    """Builder of a column whose rows have one shape. The first rows decide the shape and type."""

    def __init__(self, field: Field, rows: int) -> None:
        self._field, self._rows = field, rows
        self.array: NDArray[Any] = np.empty((0,), field.type_of(np.dtype(np.float32)))

    def layout(self, column: pa.Array) -> ColumnLayout:
        array = _to_array(column)
        dtype = self._field.type_of(array.dtype)
        return ColumnLayout(dtype, self._field.row_shape(array.shape[1:], dtype))

    def put(self, column: pa.Array, where: NDArray[np.intp]) -> None:
        if len(self.array) == 0:
            layout = self.layout(column)
            self.array = np.empty((self._rows, *layout.shape), layout.dtype)
        self.array[where] = _to_array(column).reshape(len(column), *self.array.shape[1:])

    def build(self) -> torch.Tensor:
        return arrow_file.as_tensor(self.array)

    def differs_from_next(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        view = _as_bytes(self.array)
        differs: NDArray[np.bool_] = (view[rows] != view[rows + 1]).any(1)
        return differs

    def row_bytes(self, row: int) -> bytes:
        return self.array[row : row + 1].tobytes()

    def reorder(self, start: int, order: list[int]) -> None:
        self.array[start : start + len(order)] = self.array[order]


class RaggedBuilder:
    """Builder of a column whose rows differ in length. The first elements decide their type and shape.

    ``offsets``: where each row begins, and the end of the last one.
    """

    def __init__(self, field: Field, lengths: NDArray[np.int64]) -> None:
        """``lengths``: of all rows, in their final order."""
        self._field, self.offsets = field, offsets_of(lengths)
        self.array: NDArray[Any] = np.empty((0,), field.type_of(np.dtype(np.float32)))

    def layout(self, column: pa.Array) -> ColumnLayout | None:
        return self._layout(self._split(column)[0])

    def _layout(self, elements: NDArray[Any]) -> ColumnLayout | None:
        if not len(elements) and self.offsets[-1]:
            return None
        return ColumnLayout(self._field.storage_type(elements.dtype), elements.shape[1:], self.offsets)

    def put(self, column: pa.Array, where: NDArray[np.intp]) -> None:
        elements, lengths = self._split(column)
        layout = self._layout(elements)
        if len(self.array) == 0 and layout is not None:
            self.array = np.empty((self.offsets[-1], *layout.shape), layout.dtype)
        if len(elements):
            self.array[_element_indices(self.offsets[where], lengths)] = elements

    def _split(self, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return all elements of the rows, and the number of each row's."""
        return vectors.to_words(self._field, column) if pa.types.is_struct(column.type) else arrow.to_ragged(column)

    def build(self) -> Ragged:
        return Ragged(self._field, arrow_file.as_tensor(self.array), torch.from_numpy(self.offsets))

    def differs_from_next(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        starts, middles, ends = (self.offsets[rows + more] for more in range(3))
        differs: NDArray[np.bool_] = middles - starts != ends - middles
        same_length = np.flatnonzero(~differs)
        starts, middles = starts[same_length], middles[same_length]
        view = _as_bytes(self.array)
        unequal = view[_element_indices(starts, middles - starts)] != view[_element_indices(middles, middles - starts)]
        differs[np.repeat(same_length, middles - starts)[unequal.any(1)]] = True
        return differs

    def row_bytes(self, row: int) -> bytes:
        return self.array[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def reorder(self, start: int, order: list[int]) -> None:
        rows = [self.array[self.offsets[row] : self.offsets[row + 1]] for row in order]
        first, stop = self.offsets[start], self.offsets[start + len(order)]
        self.array[first:stop] = np.concatenate(rows)
        self.offsets[start + 1 : start + len(order) + 1] = first + np.cumsum([len(row) for row in rows])


def make_builders(
    rows: RowFormat, count: int, lengths: Callable[[str], NDArray[np.int64] | None]
) -> dict[str, ArrayBuilder | RaggedBuilder]:
    """Return the builders of inputs, targets and weights, by their names in record batches.

    :param count: number of rows.
    :param lengths: function from a column's name to the lengths of its rows, for a column whose rows may differ in length.
        None: they are Vectors that all are whole.
    """
    builders: dict[str, ArrayBuilder | RaggedBuilder] = {}
    for name, field in rows.named_fields():
        found = lengths(name) if field.is_ragged else None
        builders[name] = ArrayBuilder(field, count) if found is None else RaggedBuilder(field, found)
    if rows.weight is not None:
        builders["weight"] = ArrayBuilder(Field("weightCol", rows.weight, "float64", ()), count)
    return builders


def order_equal_ids(ids: NDArray[np.int64], is_validation: NDArray[np.bool_], columns: list[Builder]) -> None:
    """Sort rows that have equal ids but different contents by their bytes.

    :param ids: of all rows, sorted within each part.
    :param is_validation: bool per row: whether it is for validation.
    """
    equal = (ids[1:] == ids[:-1]) & (is_validation[1:] == is_validation[:-1])  # row i + 1 has the id and part of row i
    places = np.flatnonzero(equal)
    different: list[int] = []
    step_rows = max(1, _COMPARED_BYTES * max(len(ids), 1) // max(1, sum(column.array.nbytes for column in columns)))
    for start in range(0, len(places), step_rows):
        part = places[start : start + step_rows]
        differs = np.any([column.differs_from_next(part) for column in columns], axis=0)
        different += part[differs].tolist()
    edges = np.append(np.flatnonzero(np.append(True, ~equal)), len(ids))
    for group in np.unique(np.searchsorted(edges, different, "right")):
        rows = range(edges[group - 1], edges[group])
        order = sorted(rows, key=lambda row: [column.row_bytes(row) for column in columns])
        for column in columns:
            column.reorder(rows.start, order)


def _to_array(column: pa.Array) -> NDArray[Any]:
    return arrow.to_array(vectors.to_lists(column) if pa.types.is_struct(column.type) else column)


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of ``[rows, …]`` as uint8 ``[rows, bytes]``."""
    return array.reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)


def _element_indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of all elements of rows that begin at ``starts`` and have ``lengths``."""
    indices: NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return indices
