"""A rank's rows: one tensor per column, in an order that does not depend on the shuffle; in memory, or in the mapped memory of
a file on the executor's disk.

1. Take the record batches as they come, checking them; drop nothing yet. They stay in memory, or are written to the disk.
2. Sort by the ``id`` column: Spark's shuffle delivers rows in any order, and the same seed must give the same model. Rows
   for validation come after those for training.
3. Allocate the arrays once and copy every batch to where its rows belong, letting go of it. Rows of one id are equal, but
   where hashes collide or zeros differ in their sign: such rows are put in the order of their bytes.
4. When all ranks know what the others have, refuse rows that cannot be used, with their number over all ranks.

So memory peaks at the data as received plus the data as kept, and there is never a Python object per row. With a disk, neither
need fit into memory; :mod:`sparkdl_comm.data.received` is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from sparkdl_comm.data.arrow_file import MappedFile
from sparkdl_comm.data.decoding import decode_batch
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.inspection import Inspection, refuse
from sparkdl_comm.data.local_disk import Folder, LocalDisk
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.data.received import Columns, Received
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


#: All rows of a column, on the CPU.
Column: TypeAlias = torch.Tensor | Ragged


@dataclass(frozen=True)
class RowCache:
    """Rows, on the CPU; like a :class:`Batch` of all of them. Those of a rank are sorted by id.

    ``weights`` have mean 1 over all ranks. ``file``: where the rows are; None: in memory. ``held``: the first of the rows once
    more, in memory; see :mod:`sparkdl_comm.data.held`.
    """

    inputs: tuple[Column, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None
    file: MappedFile | None = None
    held: RowCache | None = None

    @property
    def rows(self) -> int:
        return len(self.inputs[0])

    @property
    def slow(self) -> bool:
        """Whether :meth:`pick` may have to wait, for the disk."""
        return self.file is not None and (self.held is None or self.held.rows < self.rows)

    @property
    def columns(self) -> list[Column]:
        """Inputs, targets, and weights if there are any."""
        return [*self.inputs, *self.targets, *([] if self.weights is None else [self.weights])]

    def with_columns(self, columns: Sequence[Column]) -> RowCache:
        """Other rows, in memory. ``columns``: theirs, in the order of :attr:`columns`."""
        found: Iterator[Any] = iter(columns)
        return RowCache(
            tuple(next(found) for _ in self.inputs), tuple(next(found) for _ in self.targets), next(found, None)
        )

    def pick(self, index: torch.Tensor) -> RowCache:
        """The rows at ``index`` (int64 ``[n]``), in its order, in memory. Thread-safe."""
        if self.held is not None:
            here = index < self.held.rows
            if here.all():
                return self.held.pick(index)
            found = joined([self.held.pick(index[here]), replace(self, held=None).pick(index[~here])])
            return found.pick(torch.cat([here.nonzero(), (~here).nonzero()]).flatten().argsort())
        if self.file is not None:
            self.file.used(len(index))
        return self.with_columns(
            [column.pick(index) if isinstance(column, Ragged) else column[index] for column in self.columns]
        )

    def to(self, device: torch.device) -> RowCache:
        """The same, in memory of ``device``, but for where rows of different lengths begin."""
        return self.with_columns([column.to(device) for column in self.columns])

    def batch(self) -> Batch:
        """All rows, as model and loss take them. Calls the user's ``collate_fn``."""
        inputs = (column.collated() if isinstance(column, Ragged) else column for column in self.inputs)
        return Batch(tuple(inputs), self.targets, self.weights)

    def take(self, index: torch.Tensor, device: torch.device) -> Batch:
        """The rows at ``index`` (int64 ``[n]``), in its order."""
        return self.pick(index).to(device).batch()


def joined(parts: Sequence[RowCache]) -> RowCache:
    """The rows of all ``parts``, at least one, whose columns are alike; one part after the other."""
    columns = []
    for each in zip(*(part.columns for part in parts), strict=True):
        columns.append(Ragged.joined(each) if isinstance(each[0], Ragged) else torch.cat(each))
    return parts[0].with_columns(columns)


@dataclass(frozen=True)
class RankRows:
    """All rows of one rank; its caches share their memory. ``validation``: perhaps without rows; None if no rank has any."""

    training: RowCache
    validation: RowCache | None


class Reading:
    """A rank's rows before it knows those of the others: tell them :attr:`account`, then call :meth:`rows`."""

    def __init__(self, batches: Iterable[pa.RecordBatch], rows: RowFormat, disk: LocalDisk | None = None) -> None:
        """Reads all batches, which have the columns that ``rows`` says.

        :param disk: where they are kept, if they can be; None: in memory. To be closed then.
        :raises InputError: decode cannot be used; Vectors are of another width than others.
        :raises PersistenceError: what was written to the disk cannot be read any more.
        """
        self._format = rows
        inspection = Inspection(rows)
        self._received = Received(rows, disk)
        with ExitStack() as stack:
            stack.callback(self.close)
            for batch in (part for each in batches if each.num_rows for part in decode_batch(each, rows)):
                inspection.look(batch)
                if inspection.found:
                    self._received.clear()
                else:
                    self._received.add(batch)
            found = self._received.columns()
            stack.pop_all()
        self._use(found)
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
            "sha256": found.sha256,
            "problem": self._received.problem,
        }

    def _use(self, columns: Columns) -> None:
        self._columns, self._weights, self._file = columns.builders, columns.weights, columns.file
        self._parts = {
            "training": slice(0, columns.training),
            "validation": slice(columns.training, columns.rows),
        }

    @property
    def folder(self) -> Folder | None:
        """Where the rows are on the disk; None: they are in memory."""
        return self._received.folder

    @property
    def bytes(self) -> int:
        """What the rows take on the disk."""
        return 0 if self._file is None else self._file.size

    def close(self) -> None:
        """Removes what is on the disk and is not kept; the rows must not be used any more. May be repeated."""
        if self.folder is not None:
            self.folder.close()

    def rows(self, accounts: Sequence[dict[str, Any]]) -> RankRows:
        """The rows to use, until :meth:`close`. A rank without any has tensors of the others' types and shapes, ``[0, …]``.

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
