"""A rank's rows in memory: one tensor per column, in an order that does not depend on the shuffle.

1. Take the record batches as they come, checking them; drop nothing yet, copy nothing yet.
2. Sort by the ``id`` column: Spark's shuffle delivers rows in any order, and the same seed must give the same model.
3. Allocate the arrays once and copy every batch to where its rows belong, letting go of it.
4. When all ranks know what the others have, refuse rows that cannot be used, with their number over all ranks.

So memory peaks at the data as received plus the data as kept, and there is never a Python object per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ..errors import InputError
from . import arrow
from .fields import Field, RowFormat
from .inspection import Inspection, refuse


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

    The tensors share the memory of the numpy arrays they were made from. ``weights`` have mean 1 over all ranks.
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


class Reading:
    """A rank's rows before it knows those of the others: tell them :attr:`account`, then call :meth:`rows`."""

    def __init__(self, batches: Iterable[pa.RecordBatch], rows: RowFormat) -> None:
        """Reads all batches, which have the columns that ``rows`` says."""
        self._format = rows
        inspection = Inspection(rows)
        kept: list[pa.RecordBatch] = []
        for batch in batches:
            if batch.num_rows:
                inspection.look(batch)
                if inspection.found:
                    kept.clear()
                else:
                    kept.append(batch)
        self._columns, weights = _fill(kept, rows)
        self._weights = weights
        self.count = len(self._columns[0])
        #: For :meth:`rows`, of all ranks; JSON-able.
        self.account: dict[str, Any] = {
            "inspection": inspection.report(),
            "count": self.count,
            "columns": [[str(array.dtype), list(array.shape[1:])] for array in self._columns],
            "weight": None if weights is None else float(weights.sum()),
        }

    def rows(self, accounts: Sequence[dict[str, Any]]) -> RowCache:
        """The rows to train on. A rank without any has tensors of the others' types and shapes, ``[0, …]``.

        :param accounts: of all ranks, in their order.
        :raises InputError: rows that cannot be used, with their number over all ranks; weights that are all 0.
        """
        refuse([account["inspection"] for account in accounts])
        columns = [torch.from_numpy(array) for array in self._columns]
        if not self.count:
            other = next((account["columns"] for account in accounts if account["count"]), self.account["columns"])
            columns = [torch.empty((0, *shape), dtype=getattr(torch, dtype)) for dtype, shape in other]
        cache = RowCache(tuple(columns[: len(self._format.inputs)]), tuple(columns[len(self._format.inputs) :]))
        if self._weights is None:
            return cache
        count, total = sum(account["count"] for account in accounts), sum(account["weight"] for account in accounts)
        if count and not total:
            raise InputError(
                f"{self._format.weight}: the weights of all {count} rows are 0; at least one must be positive"
            )
        weights = self._weights * (count / total) if count else self._weights
        return replace(cache, weights=torch.from_numpy(weights.astype(np.float32)))


def _fill(kept: list[pa.RecordBatch], rows: RowFormat) -> tuple[list[np.ndarray], np.ndarray | None]:
    """All columns as arrays, sorted by id, and the weights. Lets go of each batch as soon as it is copied."""
    ids = np.concatenate([np.empty(0, np.int64), *(batch["id"].to_numpy(zero_copy_only=False) for batch in kept)])
    place = np.empty(len(ids), np.int64)
    place[np.argsort(ids, kind="stable")] = np.arange(len(ids))
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
    return [column.array for column in columns], weights


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
