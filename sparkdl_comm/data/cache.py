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
import pyarrow.compute as pc
import torch

from sparkdl_comm.data.builders import ArrayBuilder, Builder, RaggedBuilder, order_equal_ids
from sparkdl_comm.data.decoding import decode_batch
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.inspection import Inspection, refuse
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Rows as model and loss take them, on one device.

    ``inputs``: what the model is called with: tensors ``[rows, …]``, or what ``collate_fn`` made. ``targets``: one tensor per
    label column. ``weights``: float32 ``[rows]``, or None.
    """

    inputs: tuple[Any, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.targets[0])


@dataclass(frozen=True)
class RowCache:
    """Rows of one rank, sorted by id, on the CPU; like a :class:`Batch` of all of them.

    ``weights`` have mean 1 over all ranks.
    """

    inputs: tuple[torch.Tensor | Ragged, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.inputs[0])

    def take(self, index: torch.Tensor, device: torch.device) -> Batch:
        """The rows at ``index`` (int64 ``[n]``), in its order."""
        return Batch(
            tuple(
                column.take(index, device) if isinstance(column, Ragged) else column[index].to(device)
                for column in self.inputs
            ),
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
        self._parts = {"training": slice(0, training), "validation": slice(training, len(ids))}
        #: For :meth:`rows`, of all ranks; JSON-able. ``training`` and ``validation``: number of rows, and their weight.
        self.account: dict[str, Any] = {
            "inspection": inspection.report(),
            "columns": [[str(column.array.dtype), list(column.array.shape[1:])] for column in self._columns],
            **{
                name: {
                    "rows": part.stop - part.start,
                    "weight": None if self._weights is None else float(self._weights.array[part].sum()),
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
        if not self._parts["validation"].stop:
            filled = (a["columns"] for a in accounts if a["training"]["rows"] + a["validation"]["rows"])
            for column, (dtype, shape) in zip(self._columns, next(filled, self.account["columns"]), strict=True):
                column.array = np.empty((0, *shape), dtype)
        columns = [column.kept() for column in self._columns]
        return RankRows(
            self._part("training", columns, accounts),
            None if chosen is None else self._part("validation", columns, accounts),
        )

    def _part(self, name: str, columns: list[Any], accounts: Sequence[dict[str, Any]]) -> RowCache:
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
        weights = self._weights.array[part] * (rows / total if rows else 1.0)
        return replace(cache, weights=torch.from_numpy(weights.astype(np.float32)))


def _fill(kept: list[pa.RecordBatch], rows: RowFormat) -> tuple[np.ndarray, list[Builder], ArrayBuilder | None, int]:
    """The ids, all columns, the weights, sorted, and how many of the rows are for training. Lets go of each batch as soon as
    it is copied."""
    ids = _joined([batch["id"] for batch in kept], np.int64)
    held = np.zeros(len(ids), bool)
    if rows.validation is not None:
        held = _joined([batch["validation"] for batch in kept], bool)
    order = np.lexsort((ids, held))  # by `held` first
    place = np.empty(len(ids), np.int64)
    place[order] = np.arange(len(ids))
    columns: dict[str, Any] = {}
    for name, field in rows.named():
        if field.collate is None:
            columns[name] = ArrayBuilder(field, len(ids))
        else:
            lengths = _joined([pc.list_value_length(batch[name]) for batch in kept], np.int64)
            columns[name] = RaggedBuilder(field, lengths[order])
    targets = list(columns.values())
    weights = None
    if rows.weight is not None:
        columns["weight"] = weights = ArrayBuilder(Field("weightCol", rows.weight, "float64", ()), len(ids))
    start = 0
    kept.reverse()
    while kept:
        batch = kept.pop()
        where = place[start : start + batch.num_rows]
        for name, column in columns.items():
            column.put(batch[name], where)
        start += batch.num_rows
    order_equal_ids(ids[order], held[order], list(columns.values()))
    return ids[order], targets, weights, int(len(held) - held.sum())


def _joined(columns: list[pa.Array], dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *(column.to_numpy(zero_copy_only=False) for column in columns)])
