"""Record batches that a rank has received, and the sorted columns made of them, in memory or in a file on disk.

With a disk, batches are written as they come, and later copied to their rows' places in the mapped file of the columns.
Neither has to fit into memory. If the disk fails, the rank goes on in memory, with the same result.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl_comm.data import arrow_file, vectors
from sparkdl_comm.data.arrow_file import ColumnLayout, MappedFile
from sparkdl_comm.data.builders import make_builders, order_equal_ids
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.local_disk import Folder, LocalDisk
from sparkdl_comm.errors import PersistenceError

#: Bytes to reserve in one step.
_STEP_BYTES = 64 << 20


class Spill:
    """Queue of record batches in the files of a folder. :meth:`close` removes the files."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._schemas: list[pa.Schema] = []
        self._counts: list[int] = []
        self._sink: Any = None
        self._writer: Any = None
        self._reserved = 0
        #: Bytes written so far.
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch. If that fails, earlier batches are still there.

        :raises OSError: the batch cannot be written.
        :raises PersistenceError: there is no room for it.
        """
        if self.size + batch.nbytes > self._reserved:
            reserved = self.size + max(batch.nbytes, _STEP_BYTES)
            self._folder.reserve(reserved)
            self._reserved = reserved
        if not self._schemas or not batch.schema.equals(self._schemas[-1]):  # decode may return other types
            self._close_file()
            self._sink = pa.OSFile(str(self._path(len(self._counts))), "wb")
            self._writer = pa.ipc.new_stream(self._sink, batch.schema)
            self._schemas.append(batch.schema)
            self._counts.append(0)
        before = self._sink.tell()
        self._writer.write_batch(batch)
        self.size += self._sink.tell() - before
        self._counts[-1] += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches in order. No batch can be added afterwards.

        :raises OSError: they cannot be read.
        """
        self._close_file()
        for number, count in enumerate(self._counts):
            with pa.OSFile(str(self._path(number)), "rb") as source, pa.ipc.open_stream(source) as reader:
                for _ in range(count):  # a failed write may have left a partial batch at the end
                    yield reader.read_next_batch()

    def close(self) -> None:
        """Remove the files. May be called again."""
        self._close_file()
        for number in range(len(self._counts)):
            self._path(number).unlink(missing_ok=True)
        self._counts.clear()

    def _close_file(self) -> None:
        for each in (self._writer, self._sink):
            with contextlib.suppress(OSError):
                if each is not None:
                    each.close()
        self._writer = self._sink = None

    def _path(self, number: int) -> Path:
        return self._folder.path / f"received{number}.arrows"


#: Name of the columns' file in a rank's folder.
COLUMNS_FILE = "rows.arrow"
_CACHE_KEY = "spark.sparkdl.comm.data.cache"


@dataclass
class SortedColumns:
    """All rows of a rank, sorted by id, rows for training first.

    ``rows``: number of rows. ``training``: number of rows for training. ``sha256``: hash of the ids. ``builders``: of
    inputs, targets and ``weight``, by name. ``file``: the file with the columns; None: they are in memory, or there are
    no rows.
    """

    rows: int
    training: int
    sha256: str
    builders: dict[str, Any]
    file: MappedFile | None = None


class BatchCollector:
    """Collector of batches: call :meth:`add` for each, then :meth:`columns`.

    ``problem``: why the disk is not used although it was asked for, or None. ``folder``: of the columns' file; the
    caller closes it.
    """

    def __init__(self, rows: RowFormat, disk: LocalDisk | None) -> None:
        self._rows = rows
        self._ids: list[NDArray[np.int64]] = []
        self._is_validation: list[NDArray[np.bool_]] = []
        self._ragged = {name: field for name, field in rows.named_fields() if field.is_ragged}
        self._lengths: dict[str, list[NDArray[np.int64]]] = {name: [] for name in self._ragged}
        self._widths: dict[str, int] = {}
        self._in_memory: list[pa.RecordBatch] = []
        self._spill: Spill | None = None
        self.folder: Folder | None = None
        self.problem: str | None = None
        if disk is not None:
            try:
                self.folder = disk.create_folder()
                self._spill = Spill(self.folder)
            except OSError as error:
                self._fall_back_to_memory(error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows that can be used. It goes to the disk if possible, else it stays in memory.

        :raises PersistenceError: earlier batches cannot be read from the disk again.
        """
        self._ids.append(_copy(batch["id"], np.int64))
        if self._rows.validation is not None:
            self._is_validation.append(_copy(batch["validation"], bool))
        for name, field in self._ragged.items():
            column = batch[name]
            if field.width is None:
                self._lengths[name].append(_copy(pc.list_value_length(column), np.int64))
            else:
                self._lengths[name].append(vectors.count_words(field, column))
                self._widths[name] = max(vectors.distinct_sizes(column))
        if self._spill is not None:
            try:
                self._spill.add(batch)
                return
            except OSError as error:
                self._fall_back_to_memory(error)
        self._in_memory.append(batch)

    def clear(self) -> None:
        """Release all batches, because there are rows that cannot be used."""
        parts: list[list[Any]] = [self._ids, self._is_validation, self._in_memory, *self._lengths.values()]
        for part in parts:
            part.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def columns(self) -> SortedColumns:
        """Return the sorted columns. Releases each batch as soon as it is copied.

        :raises PersistenceError: the batches cannot be read from the disk again.
        """
        ids = np.concatenate([np.empty(0, np.int64), *self._ids])
        is_validation = np.zeros(len(ids), bool)
        if self._rows.validation is not None:
            is_validation = np.concatenate([np.empty(0, bool), *self._is_validation])
        order = np.lexsort((ids, is_validation))
        place = np.empty(len(ids), np.int64)
        place[order] = np.arange(len(ids))

        def lengths(name: str) -> NDArray[np.int64] | None:
            field = self._ragged[name]
            found: NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *self._lengths[name]])[order]
            is_whole = field.width is not None and vectors.are_whole(field, found, self._widths.get(name, 0))
            return None if is_whole else found

        builders: dict[str, Any] = make_builders(self._rows, len(ids), lengths)
        file = self._create_file(builders, len(ids))
        start = 0
        for batch in self._read_batches():
            where = place[start : start + batch.num_rows]
            for name, builder in builders.items():
                builder.put(batch[name], where)
            start += batch.num_rows
            if file is not None:
                file.record_use(batch.num_rows)
        order_equal_ids(ids[order], is_validation[order], list(builders.values()))
        if file is not None:
            file = self._reopen_for_reading(file, builders)
        training = int(len(is_validation) - is_validation.sum())
        sha256 = hashlib.sha256(ids[order].tobytes() + str(training).encode()).hexdigest()
        return SortedColumns(len(ids), training, sha256, builders, file)

    def _create_file(self, builders: dict[str, Any], rows: int) -> MappedFile | None:
        """Lay out the file for the columns and return it. None: the columns go to memory."""
        if self._spill is None or self.folder is None or not rows:
            return None
        try:
            layouts = self._find_layouts(builders)
            size = sum(layout.size_bytes(rows) for layout in layouts.values())
            self.folder.reserve(self._spill.size + size)
            arrow_file.create(self.folder.path / COLUMNS_FILE, layouts, rows)
            file = MappedFile(self.folder.path / COLUMNS_FILE, writable=True)
        except OSError as error:
            self._fall_back_to_memory(error)
            return None
        for name, builder in builders.items():
            builder.array = file.arrays[name]
        return file

    def _find_layouts(self, builders: dict[str, Any]) -> dict[str, ColumnLayout]:
        layouts: dict[str, ColumnLayout] = {}
        for batch in self._read_batches():
            for name in builders.keys() - layouts.keys():
                layout = builders[name].layout(batch[name])
                if layout is not None:
                    layouts[name] = layout
            if len(layouts) == len(builders):
                break
        return {name: layouts[name] for name in builders}

    def _reopen_for_reading(self, file: MappedFile, builders: dict[str, Any]) -> MappedFile:
        """Remove the received batches, and return the file opened for reading."""
        for name, offsets in file.offsets.items():
            offsets[:] = builders[name].offsets
        assert self.folder is not None
        assert self._spill is not None
        read = MappedFile(self.folder.path / COLUMNS_FILE)
        for name, builder in builders.items():
            builder.array = read.arrays[name]
        self._spill.close()
        with contextlib.suppress(OSError):  # it only frees part of the reservation
            self.folder.reserve((self.folder.path / COLUMNS_FILE).stat().st_size)
        return read

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        if self._spill is None:
            self._in_memory.reverse()
            while self._in_memory:
                yield self._in_memory.pop()
            return
        try:
            yield from self._spill.batches()
        except OSError as error:
            raise PersistenceError(
                f"rows written to {self.folder and self.folder.path} cannot be read again: {error}. Set"
                f" {_CACHE_KEY}=memory"
            ) from error

    def _fall_back_to_memory(self, error: OSError) -> None:
        """Continue in memory after ``error``."""
        self.problem = f"rows are kept in memory, not on the executor's disk: {error}"
        if self._spill is not None:
            self._in_memory = list(self._read_batches())
            self._spill.close()
            self._spill = None
        if self.folder is not None:
            self.folder.close()
            self.folder = None


def _copy(column: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return a copy of the values, so that the batch can be released."""
    return np.array(column.to_numpy(zero_copy_only=False), dtype)
