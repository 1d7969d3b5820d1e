"""A rank's record batches on the disk until all have come: they need not fit into memory before their order is known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkdl_comm.data.local_disk import Folder

#: Bytes that are asked for at once.
_STEP = 64 << 20


class Spill:
    """Record batches in the files of a folder, in the order in which they came. :meth:`close` removes them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._schemas: list[pa.Schema] = []
        self._counts: list[int] = []
        self._sink: Any = None
        self._writer: Any = None
        self._reserved = 0
        #: Bytes written.
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Writes a batch. If that fails, those before it are still there.

        :raises OSError: there is no more room for it, or it cannot be written.
        """
        if self.size + batch.nbytes > self._reserved:
            reserved = self.size + max(batch.nbytes, _STEP)
            self._folder.reserve(reserved)
            self._reserved = reserved
        if not self._schemas or not batch.schema.equals(self._schemas[-1]):  # decode may return other types
            self._end()
            self._sink = pa.OSFile(str(self._file(len(self._counts))), "wb")
            self._writer = pa.ipc.new_stream(self._sink, batch.schema)
            self._schemas.append(batch.schema)
            self._counts.append(0)
        before = self._sink.tell()
        self._writer.write_batch(batch)
        self.size += self._sink.tell() - before
        self._counts[-1] += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them. None can be added afterwards.

        :raises OSError: they cannot be read.
        """
        self._end()
        for number, count in enumerate(self._counts):
            with pa.OSFile(str(self._file(number)), "rb") as source, pa.ipc.open_stream(source) as reader:
                for _ in range(count):  # what follows may have been cut off
                    yield reader.read_next_batch()

    def close(self) -> None:
        """May be repeated."""
        self._end()
        for number in range(len(self._counts)):
            self._file(number).unlink(missing_ok=True)
        self._counts.clear()

    def _end(self) -> None:
        for each in (self._writer, self._sink):
            with contextlib.suppress(OSError):
                if each is not None:
                    each.close()
        self._writer = self._sink = None

    def _file(self, number: int) -> Path:
        return self._folder.path / f"received{number}.arrows"
