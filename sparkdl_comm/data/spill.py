"""Record batches of a rank, spilled to the disk until all have come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkdl_comm.data.local_disk import Folder

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
