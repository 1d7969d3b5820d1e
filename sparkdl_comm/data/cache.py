"""A rank's rows in memory: one tensor per column, in an order that does not depend on the shuffle.

1. Take the record batches as they come, checking them; drop nothing yet, copy nothing yet.
2. Sort by the ``id`` column: Spark's shuffle delivers rows in any order, and the same seed must give the same model. Rows
   for validation come after those for training.
3. Allocate the arrays once and copy every batch to where its rows belong, letting go of it. Rows of one id are equal, but
   where hashes collide or zeros differ in their sign: such rows are put in the order of their bytes.
4. When all ranks know what the others have, refuse rows that cannot be used, with their number over all ranks.

So memory peaks at the data as received plus the data as kept, and there is never a Python object per row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ..errors import InputError
from . import arrow
from .decoding import decode_batch
from .fields import Field, RowFormat
from .inspection import Inspection, refuse

#: Rows with equal ids that are compared at once.
_COMPARED = 4096


@dataclass(frozen=True)
class Batch:
    """Rows as model and loss take them, on one device.

    ``inputs``: what the model is called with, each ``[rows, …]``. ``targets``: one tensor per label column. ``weights``:
    float32 ``[rows]``, or None.
    """

    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None


@dataclass(frozen=True)
class RowCache:
    """Rows of one rank, sorted by id, on the CPU; like a :class:`Batch` of all of them.

    ``weights`` have mean 1 over all ranks.
    """

    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self.inputs[0].shape[0]

    def take(self, index: torch.Tensor, device: torch.device) -> Batch:
        """The rows at ``index`` (int64 ``[n]``), in its order."""
        return Batch(
            tuple(column[index].to(device) for column in self.inputs),
            tuple(column[index].to(device) for column in self.targets),
            None if self.weights is None else self.weights[index].to(device),
        )


@dataclass(frozen=True)
class RankRows:
    """All rows of one rank; its caches share their memory. ``validation``: perhaps without rows; None if no rank has any."""

    training: RowCache
    validation: RowCache | None


class Reading:
    """A rank's rows before it knows those of the others: tell them :attr:`account`, then call :meth:`rows`."""

    def __init__(self, batches: Iterable[pa.RecordBatch], rows: RowFormat) -> None:
        """Reads all batches, which have the columns that ``rows`` says.

        :raises InputError: decode cannot be used.
        """
        self._format = rows
        inspection = Inspection(rows)
        kept: list[pa.RecordBatch] = []
        for batch in batches:
            if batch.num_rows:
                batch = decode_batch(batch, rows)
                inspection.look(batch)
                if inspection.found:
                    kept.clear()
                else:
                    kept.append(batch)
        ids, self._columns, self._weights, training = _fill(kept, rows)
        count = len(self._columns[0])
        self._parts = {"training": slice(0, training), "validation": slice(training, count)}
        #: For :meth:`rows`, of all ranks; JSON-able. ``training`` and ``validation``: number of rows, and their weight.
        self.account: dict[str, Any] = {
            "inspection": inspection.report(),
            "columns": [[str(array.dtype), list(array.shape[1:])] for array in self._columns],
            **{
                name: {
                    "rows": part.stop - part.start,
                    "weight": None if self._weights is None else float(self._weights[part].sum()),
                }
                for name, part in self._parts.items()
            },
            "sha256": hashlib.sha256(ids.tobytes() + str(training).encode()).hexdigest(),
        }

    def rows(self, accounts: Sequence[dict[str, Any]]) -> RankRows:
        """The rows to use. A rank without any has tensors of the others' types and shapes, ``[0, …]``.

        :param accounts: of all ranks, in their order.
        :raises InputError: rows that cannot be used, with their number over all ranks; no row for training, or none for
            validation where some were to be; weights that are all 0.
        """
        refuse([account["inspection"] for account in accounts])
        chosen = self._format.validation
        training, held = (sum(account[name]["rows"] for account in accounts) for name in ("training", "validation"))
        if chosen is not None and held == 0 < training:
            raise InputError(f"{chosen}: none of the {training} rows is for validation")
        if chosen is not None and training == 0 < held:
            raise InputError(f"{chosen}: all {held} rows are for validation, and none is left to train on")
        columns = [torch.from_numpy(array) for array in self._columns]
        if not len(columns[0]):
            filled = (a["columns"] for a in accounts if a["training"]["rows"] + a["validation"]["rows"])
            columns = [
                torch.empty((0, *shape), dtype=getattr(torch, dtype))
                for dtype, shape in next(filled, self.account["columns"])
            ]
        return RankRows(
            self._part("training", columns, accounts),
            None if chosen is None else self._part("validation", columns, accounts),
        )

    def _part(self, name: str, columns: list[torch.Tensor], accounts: Sequence[dict[str, Any]]) -> RowCache:
        part = self._parts[name]
        inputs = len(self._format.inputs)
        tensors = [column[part] for column in columns]
        cache = RowCache(tuple(tensors[:inputs]), tuple(tensors[inputs:]))
        if self._weights is None:
            return cache
        rows, total = (sum(account[name][key] for account in accounts) for key in ("rows", "weight"))
        if rows and not total:
            raise InputError(
                f"{self._format.weight}: the weights of all {rows} rows for {name} are 0; at least one must be positive"
            )
        weights = self._weights[part] * (rows / total if rows else 1.0)
        return replace(cache, weights=torch.from_numpy(weights.astype(np.float32)))


def _fill(kept: list[pa.RecordBatch], rows: RowFormat) -> tuple[np.ndarray, list[np.ndarray], np.ndarray | None, int]:
    """The ids, all columns as arrays, the weights, sorted, and how many of the rows are for training. Lets go of each batch
    as soon as it is copied."""
    ids = _joined([batch["id"] for batch in kept], np.int64)
    held = np.zeros(len(ids), bool)
    if rows.validation is not None:
        held = _joined([batch["validation"] for batch in kept], bool)
    order = np.lexsort((ids, held))  # by `held` first
    place = np.empty(len(ids), np.int64)
    place[order] = np.arange(len(ids))
    columns = [_Column(field, len(ids)) for _, field in rows.named()]
    weights = None if rows.weight is None else np.empty(len(ids))
    start = 0
    kept.reverse()
    while kept:
        batch = kept.pop()
        where = place[start : start + batch.num_rows]
        for column, (name, _) in zip(columns, rows.named(), strict=True):
            column.put(batch[name], where)
        if weights is not None:
            weights[where] = batch["weight"].to_numpy(zero_copy_only=False)
        start += batch.num_rows
    arrays = [column.array for column in columns]
    _order_equal_ids(ids[order], held[order], arrays if weights is None else [*arrays, weights])
    return ids[order], arrays, weights, int(len(held) - held.sum())


def _order_equal_ids(ids: np.ndarray, held: np.ndarray, arrays: list[np.ndarray]) -> None:
    """Puts rows that are not equal, although their ids are, in the order of their bytes. All are sorted by ids."""
    equal = (ids[1:] == ids[:-1]) & (held[1:] == held[:-1])  # to the row before, from the second row on
    views = [array.reshape(len(ids), -1).view(np.uint8) for array in arrays if array.size]
    places = np.flatnonzero(equal)
    different: list[int] = []
    for start in range(0, len(places), _COMPARED):
        part = places[start : start + _COMPARED]
        found = np.any([(view[part] != view[part + 1]).any(1) for view in views], axis=0)
        different += part[found].tolist()
    edges = np.append(np.flatnonzero(np.append(True, ~equal)), len(ids))
    for group in np.unique(np.searchsorted(edges, different, "right")):
        rows = range(edges[group - 1], edges[group])
        order = sorted(rows, key=lambda row: [view[row].tobytes() for view in views])
        for view in views:
            view[rows.start : rows.stop] = view[order]


def _joined(columns: list[pa.Array], dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *(column.to_numpy(zero_copy_only=False) for column in columns)])


class _Column:
    """One array, allocated when the first rows tell its type and shape."""

    def __init__(self, field: Field, rows: int) -> None:
        self._field, self._rows = field, rows
        self.array = np.empty((0,), field.type_of(np.dtype(np.float32)))

    def put(self, column: pa.Array, where: np.ndarray) -> None:
        found = arrow.values(column)
        if len(self.array) == 0:
            dtype = self._field.type_of(found.dtype)
            self.array = np.empty((self._rows, *self._field.row_shape(found.shape[1:], dtype)), dtype)
        self.array[where] = found.reshape(len(column), *self.array.shape[1:])
