"""A rank's rows: one tensor per column, in memory or in a mapped file on the executor's disk.

The order of the rows does not depend on the shuffle:

1. Take the record batches as they come, and check them. They stay in memory, or go to the disk.
2. Sort by the ``id`` column. Spark's shuffle delivers rows in any order, and the same seed must give the same model.
   Rows for validation come after those for training.
3. Allocate the arrays once, and copy each batch to its rows' places, then release it. Rows with equal ids are equal,
   except after a hash collision or where zeros differ in sign. Such rows are ordered by their bytes.
4. When all ranks know each other's accounts, refuse rows that cannot be used, with their number over all ranks.

Peak memory is the received data plus the sorted data, without a Python object per row. With a disk, neither has to fit
into memory. :mod:`sparkdl_comm.data.batch_collector` handles both cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from sparkdl_comm.data.arrow import decode_batch
from sparkdl_comm.data.arrow_file import MappedFile
from sparkdl_comm.data.batch_collector import BatchCollector, SortedColumns
from sparkdl_comm.data.builders import ArrayBuilder, RaggedBuilder
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.inspection import RowInspection, check_reports
from sparkdl_comm.data.local_disk import Folder, LocalDisk
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Rows in the form that model and loss take, on one device.

    ``inputs``: arguments of the model: tensors ``[rows, …]``, or return values of ``collate_fn``. ``targets``: one
    tensor per label column. ``weights``: float32 ``[rows]``, or None.
    """

    inputs: tuple[Any, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.targets[0])


#: All rows of a column, on the CPU.
Column: TypeAlias = torch.Tensor | Ragged


@dataclass(frozen=True)
class RowCache:
    """Rows on the CPU, one tensor per column. A rank's rows are sorted by id.

    ``weights`` have mean 1 over all ranks. ``file``: the file that holds the rows; None: they are in memory. ``resident``:
    copy in memory of the first rows of the file; see :mod:`sparkdl_comm.job.rank_rows`.
    """

    inputs: tuple[Column, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None
    file: MappedFile | None = None
    resident: RowCache | None = None

    @property
    def rows(self) -> int:
        return len(self.inputs[0])

    @property
    def needs_read_ahead(self) -> bool:
        """True if :meth:`pick` may have to read from the disk."""
        return self.file is not None and (self.resident is None or self.resident.rows < self.rows)

    @property
    def columns(self) -> list[Column]:
        """Inputs, targets, and weights if there are any."""
        return [*self.inputs, *self.targets, *([] if self.weights is None else [self.weights])]

    def with_columns(self, columns: Sequence[Column]) -> RowCache:
        """Return a cache in memory of other rows. ``columns``: its columns, in the order of :attr:`columns`."""
        remaining: Iterator[Any] = iter(columns)
        return RowCache(
            tuple(next(remaining) for _ in self.inputs),
            tuple(next(remaining) for _ in self.targets),
            next(remaining, None),
        )

    def pick(self, index: torch.Tensor) -> RowCache:
        """Return the rows at ``index`` (int64 ``[n]``), in that order, in memory. Thread-safe."""
        if self.resident is not None:
            is_resident = index < self.resident.rows
            if is_resident.all():
                return self.resident.pick(index)
            unordered = concatenate(
                [self.resident.pick(index[is_resident]), replace(self, resident=None).pick(index[~is_resident])]
            )
            return unordered.pick(torch.cat([is_resident.nonzero(), (~is_resident).nonzero()]).flatten().argsort())
        if self.file is not None:
            self.file.record_use(len(index))
        return self.with_columns(
            [column.pick(index) if isinstance(column, Ragged) else column[index] for column in self.columns]
        )

    def to(self, device: torch.device) -> RowCache:
        """Return the same rows on ``device``. Offsets of rows that differ in length stay on the CPU."""
        return self.with_columns([column.to(device) for column in self.columns])

    def batch(self) -> Batch:
        """Return all rows in the form that model and loss take.

        A column whose rows differ in length goes through the user's ``collate_fn``, or becomes a tensor if its rows are
        sparse vectors. Other columns stay as they are.
        """
        inputs = (column.collate() if isinstance(column, Ragged) else column for column in self.inputs)
        return Batch(tuple(inputs), self.targets, self.weights)

    def take(self, index: torch.Tensor, device: torch.device) -> Batch:
        """Return the rows at ``index`` (int64 ``[n]``), in that order, as a batch on ``device``."""
        return self.pick(index).to(device).batch()


def concatenate(parts: Sequence[RowCache]) -> RowCache:
    """Concatenate the rows of all ``parts``. There is at least one part, and all have the same columns."""
    columns = []
    for column_parts in zip(*(part.columns for part in parts), strict=True):
        columns.append(
            Ragged.concatenate(column_parts) if isinstance(column_parts[0], Ragged) else torch.cat(column_parts)
        )
    return parts[0].with_columns(columns)


@dataclass(frozen=True)
class RankRows:
    """All rows of one rank. ``validation``: may have no rows; None if no rank has any. Both caches share memory."""

    training: RowCache
    validation: RowCache | None


class RowReader:
    """Rows of a rank before it knows the other ranks' accounts.

    Exchange :attr:`account` with the other ranks, then call :meth:`rows`.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], rows: RowFormat, disk: LocalDisk | None = None) -> None:
        """Read all batches. Their columns are described by ``rows``.

        :param disk: where to keep the rows, if possible; None: in memory. Call :meth:`close` afterwards.
        :raises InputError: decode fails.
        :raises PersistenceError: rows written to the disk cannot be read again.
        """
        self._format = rows
        inspection = RowInspection(rows)
        self._collector = BatchCollector(rows, disk)
        with ExitStack() as stack:
            stack.callback(self.close)
            for batch in (part for each in batches if each.num_rows for part in decode_batch(each, rows)):
                inspection.inspect(batch)
                if inspection.has_bad_rows:
                    self._collector.clear()
                else:
                    self._collector.add(batch)
            columns = self._collector.columns()
            stack.pop_all()
        self._set_columns(columns)
        #: JSON-able report for :meth:`rows` of all ranks. ``training`` and ``validation``: number of rows, sum of weights.
        self.account: dict[str, Any] = {
            "inspection": inspection.report(),
            "columns": [_describe(column) for column in self._columns],
            **{
                name: {
                    "rows": part.stop - part.start,
                    "weight": None if self._weights is None else float(self._weights.array[part].sum()),
                }
                for name, part in self._parts.items()
            },
            "sha256": columns.sha256,
            "problem": self._collector.problem,
        }

    def _set_columns(self, columns: SortedColumns) -> None:
        builders = dict(columns.builders)
        self._weights, self._file = builders.pop("weight", None), columns.file
        self._columns = list(builders.values())
        self._parts = {
            "training": slice(0, columns.training),
            "validation": slice(columns.training, columns.rows),
        }

    @property
    def folder(self) -> Folder | None:
        """Folder of the rows on the disk; None: they are in memory."""
        return self._collector.folder

    @property
    def size_bytes(self) -> int:
        """Bytes that the rows take on the disk."""
        return 0 if self._file is None else self._file.size_bytes

    def close(self) -> None:
        """Remove the folder unless it is kept. The rows must not be used afterwards. May be called again."""
        if self.folder is not None:
            self.folder.close()

    def rows(self, accounts: Sequence[dict[str, Any]]) -> RankRows:
        """Return the rows to use until :meth:`close`.

        A column without elements, because this rank has no rows or only empty lists, gets the type and shape ``[0, …]``
        of the other ranks' columns. A column of Vectors is a tensor if it is on all ranks.

        :param accounts: of all ranks, in order.
        :raises InputError: there are rows that cannot be used (with their number over all ranks), no rows for training,
            no rows for validation although some were asked for, or only weights of 0.
        """
        check_reports([account["inspection"] for account in accounts])
        selector = self._format.validation
        training, validation = (
            sum(account[name]["rows"] for account in accounts) for name in ("training", "validation")
        )
        if selector is not None and validation == 0 < training:
            raise InputError(f"{selector}: none of the {training} rows is for validation")
        if selector is not None and training == 0 < validation:
            raise InputError(f"{selector}: all {validation} rows are for validation. Leave some for training")
        nonempty = [a["columns"] for a in accounts if a["training"]["rows"] + a["validation"]["rows"]]
        lengths = {name: found for account in accounts for name, found in account["inspection"]["lengths"].items()}
        columns: list[Column] = []
        for (_, field), column, *descriptions in zip(
            self._format.named_fields(), self._columns, *nonempty, strict=True
        ):
            of_kind = [each for each in descriptions if each[3] == isinstance(column, RaggedBuilder)]
            if of_kind and not len(column.array):
                dtype, shape, *_ = max(of_kind, key=lambda description: description[2])
                column.array = np.empty((0, *shape), dtype)
            rows = column.build()
            if field.width is not None and any(is_ragged for *_, is_ragged in descriptions):
                rows = Ragged.of_vectors(replace(field, width=lengths[str(field)][0][0]), rows)
            columns.append(rows)
        return RankRows(
            self._make_cache("training", columns, accounts),
            None if selector is None else self._make_cache("validation", columns, accounts),
        )

    def _make_cache(self, name: str, columns: list[Any], accounts: Sequence[dict[str, Any]]) -> RowCache:
        part = self._parts[name]
        inputs = len(self._format.inputs)
        tensors = [column[part] for column in columns]
        cache = RowCache(tuple(tensors[:inputs]), tuple(tensors[inputs:]), file=self._file)
        if self._weights is None:
            return cache
        rows, total = (sum(account[name][key] for account in accounts) for key in ("rows", "weight"))
        if rows and not total:
            raise InputError(
                f"{self._format.weight}: the weights of all {rows} rows for {name} are 0; at least one must be positive"
            )
        weights = self._weights.array[part] * (rows / total if rows else 1.0)
        return replace(cache, weights=torch.from_numpy(weights.astype(np.float32)))


def _describe(column: ArrayBuilder | RaggedBuilder) -> list[Any]:
    """Return a JSON-able description: type, shape of an element, number of elements, and whether rows differ in
    length.
    """
    array = column.array
    return [str(array.dtype), list(array.shape[1:]), len(array), isinstance(column, RaggedBuilder)]
