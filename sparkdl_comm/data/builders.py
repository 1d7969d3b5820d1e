"""A rank's columns while they are filled: each batch's rows are put at their places, then rows of one id in order.

There are two kinds, for rows of one shape and for rows of different lengths.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch

from sparkdl_comm.data import arrow, arrow_file
from sparkdl_comm.data.arrow_file import Layout
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import Ragged, offsets_of

#: Bytes of rows with equal ids that are compared at once.
_COMPARED = 32 << 20


class Builder(Protocol):
    """Builds one column: call :meth:`put` until all rows are there, then the other methods.

    ``array``: all elements. It is allocated with the first rows, if it is not set before, to memory of the :meth:`layout`. As
    long as there are no rows, its type and shape may be set.
    """

    array: np.ndarray

    def layout(self, column: pa.Array) -> Layout | None:
        """What the array is to be for rows such as these; None: others must tell."""

    def put(self, column: pa.Array, where: np.ndarray) -> None:
        """Takes rows without nulls. ``where``: their places."""

    def differ(self, rows: np.ndarray) -> np.ndarray:
        """Whether each of ``rows`` has other bytes than the row after it."""

    def key(self, row: int) -> bytes:
        """The row's bytes."""

    def reorder(self, start: int, order: list[int]) -> None:
        """Puts the rows of ``order``, which are those from ``start`` on, in this order."""

    def kept(self) -> torch.Tensor | Ragged:
        """The column, in the same memory."""


class ArrayBuilder:
    """Builds a column whose rows have one shape, which the first rows tell, and their type."""

    def __init__(self, field: Field, rows: int) -> None:
        self._field, self._rows = field, rows
        self.array = np.empty((0,), field.type_of(np.dtype(np.float32)))

    def layout(self, column: pa.Array) -> Layout:
        found = arrow.values(column)
        dtype = self._field.type_of(found.dtype)
        return Layout(dtype, self._field.row_shape(found.shape[1:], dtype))

    def put(self, column: pa.Array, where: np.ndarray) -> None:
        if len(self.array) == 0:
            layout = self.layout(column)
            self.array = np.empty((self._rows, *layout.shape), layout.dtype)
        self.array[where] = arrow.values(column).reshape(len(column), *self.array.shape[1:])

    def kept(self) -> torch.Tensor:
        return arrow_file.tensor(self.array)

    def differ(self, rows: np.ndarray) -> np.ndarray:
        view = _as_bytes(self.array)
        return (view[rows] != view[rows + 1]).any(1)

    def key(self, row: int) -> bytes:
        return self.array[row].tobytes()

    def reorder(self, start: int, order: list[int]) -> None:
        self.array[start : start + len(order)] = self.array[order]


class RaggedBuilder:
    """Builds a column of rows of different lengths, one after the other. The first elements tell their type and shape.

    ``offsets``: where each row begins, and where the last one ends.
    """

    def __init__(self, field: Field, lengths: np.ndarray) -> None:
        """``lengths``: of all rows, in the order in which they are to be."""
        self._field, self.offsets = field, offsets_of(lengths)
        self.array = np.empty((0,), field.type_of(np.dtype(np.float32)))

    def layout(self, column: pa.Array) -> Layout | None:
        found, _ = arrow.ragged(column)
        if not len(found) and self.offsets[-1]:
            return None
        return Layout(self._field.kept_type(found.dtype), found.shape[1:], self.offsets)

    def put(self, column: pa.Array, where: np.ndarray) -> None:
        found, lengths = arrow.ragged(column)
        layout = self.layout(column)
        if len(self.array) == 0 and layout is not None:
            self.array = np.empty((self.offsets[-1], *layout.shape), layout.dtype)
        if len(found):
            self.array[_places(self.offsets[where], lengths)] = found

    def kept(self) -> Ragged:
        return Ragged(self._field, arrow_file.tensor(self.array), torch.from_numpy(self.offsets))

    def differ(self, rows: np.ndarray) -> np.ndarray:
        one, two, end = (self.offsets[rows + more] for more in range(3))
        found = two - one != end - two
        alike = np.flatnonzero(~found)
        one, two = one[alike], two[alike]
        view = _as_bytes(self.array)
        unequal = view[_places(one, two - one)] != view[_places(two, two - one)]
        found[np.repeat(alike, two - one)[unequal.any(1)]] = True
        return found

    def key(self, row: int) -> bytes:
        return self.array[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def reorder(self, start: int, order: list[int]) -> None:
        rows = [self.array[self.offsets[row] : self.offsets[row + 1]] for row in order]
        first, stop = self.offsets[start], self.offsets[start + len(order)]
        self.array[first:stop] = np.concatenate(rows)
        self.offsets[start + 1 : start + len(order) + 1] = first + np.cumsum([len(row) for row in rows])


def order_equal_ids(ids: np.ndarray, held: np.ndarray, columns: list[Builder]) -> None:
    """Puts rows that are not equal, although their ids are, in the order of their bytes. All are sorted by ids."""
    equal = (ids[1:] == ids[:-1]) & (held[1:] == held[:-1])  # to the row before, from the second row on
    places = np.flatnonzero(equal)
    different: list[int] = []
    at_once = max(1, _COMPARED * max(len(ids), 1) // max(1, sum(column.array.nbytes for column in columns)))
    for start in range(0, len(places), at_once):
        part = places[start : start + at_once]
        found = np.any([column.differ(part) for column in columns], axis=0)
        different += part[found].tolist()
    edges = np.append(np.flatnonzero(np.append(True, ~equal)), len(ids))
    for group in np.unique(np.searchsorted(edges, different, "right")):
        rows = range(edges[group - 1], edges[group])
        order = sorted(rows, key=lambda row: [column.key(row) for column in columns])
        for column in columns:
            column.reorder(rows.start, order)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """A view of ``[rows, …]`` as uint8 ``[rows, bytes]``."""
    return array.reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)


def _places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Where all elements of rows are that begin at ``starts``."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
