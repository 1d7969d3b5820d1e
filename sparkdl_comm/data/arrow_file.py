"""A rank's columns as one Arrow file: laid out first, then filled, then read, always as mapped memory.

The file has one record batch, so each column lies in one stretch, and a tensor of all its rows can be made there. Arrow writes
a record batch that it has in memory as a whole. Here it is given columns of nothing, and what it would write of their memory
is left out: the disk's space is taken, and the values are put there later.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from sparkdl_comm.data import arrow

#: Bytes of the mapped file that a process uses before it lets go of them; they stay in the system's cache of files.
_HELD = 256 << 20
#: What the system maps around one byte that is used.
_AROUND = 64 << 10


@dataclass(frozen=True)
class Layout:
    """A column: its type, and the shape of a row; for rows that differ in length, the shape of an element, and ``offsets``,
    int64 ``[rows + 1]``: where each row begins, and where the last one ends."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offsets: np.ndarray | None = None

    def bytes(self, rows: int) -> int:
        elements = rows if self.offsets is None else int(self.offsets[-1])
        return elements * math.prod(self.shape) * self.dtype.itemsize + (0 if self.offsets is None else 8 * (rows + 1))


def create(path: Path, columns: Mapping[str, Layout], rows: int) -> None:
    """Writes a file whose values are yet to come (``offsets`` too), and takes all of its space on the disk.

    :param rows: at least 1.
    :raises OSError: it cannot be written, or there is no space left.
    """
    with open(path, "x+b") as file, tempfile.TemporaryFile(dir=path.parent) as nothing:
        nothing.truncate(max(layout.bytes(rows) for layout in columns.values()) or 1)
        with mmap.mmap(nothing.fileno(), 0, access=mmap.ACCESS_READ) as view:
            memory = pa.py_buffer(view)
            arrays = [_array(layout, rows, memory) for layout in columns.values()]
            batch = pa.RecordBatch.from_arrays(arrays, list(columns))
            sink = _WithoutBuffers(file.fileno())
            options = pa.ipc.IpcWriteOptions(allow_64bit=True)
            with pa.ipc.new_file(pa.PythonFile(sink, "w"), batch.schema, options=options) as writer:
                writer.write_batch(batch)
            del memory, arrays, batch, writer  # so that the view can be closed
        os.posix_fallocate(file.fileno(), 0, sink.tell())  # what is mapped and has no space would end the process


def _array(layout: Layout, rows: int, memory: pa.Buffer) -> pa.Array:
    count = rows if layout.offsets is None else int(layout.offsets[-1])
    length = count * math.prod(layout.shape)
    values = memory.slice(0, length * layout.dtype.itemsize)
    found = pa.Array.from_buffers(pa.from_numpy_dtype(layout.dtype), length, [None, values], 0)
    for depth in range(len(layout.shape), 0, -1):
        size = layout.shape[depth - 1]
        count_there = count * math.prod(layout.shape[: depth - 1])
        kind = pa.list_(found.type, size)
        found = pa.FixedSizeListArray.from_buffers(kind, count_there, [None], 0, children=[found])
    if layout.offsets is None:
        return found
    return pa.LargeListArray.from_arrays(pa.array(layout.offsets), found)


class _WithoutBuffers(io.RawIOBase):
    """A sink of Arrow's that leaves holes for columns' memory, which comes as Arrow's buffers; all else is bytes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._at = descriptor, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if isinstance(data, bytes):
            os.pwrite(self._descriptor, data, self._at)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def tell(self) -> int:
        return self._at


class MappedFile:
    """The columns of a file that :func:`create` has made, in mapped memory.

    ``arrays``: by name, all rows ``[rows, …]`` or all elements ``[elements, …]``; ``offsets``: of columns whose rows differ
    in length, by name. Writing to them writes to the file; if it is not ``writable``, it ends the process.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        """:raises OSError: there is no such file, or it cannot be mapped.
        :raises pa.ArrowInvalid: it is none of Arrow's."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        with open(path, "r+b" if writable else "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=access)
        memory = pa.py_buffer(self._map)
        batch = pa.ipc.open_file(memory).get_batch(0)
        self.arrays: dict[str, np.ndarray] = {}
        self.offsets: dict[str, np.ndarray] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_large_list(column.type):
                self.offsets[name] = self._part(column.buffers()[1], memory, np.dtype(np.int64))
                column = column.values
            kind, shape = column.type, [len(column)]
            while arrow.is_list(kind):
                shape.append(kind.list_size)
                kind = kind.value_type
            values = self._part(column.buffers()[-1], memory, np.dtype(kind.to_pandas_dtype()))
            self.arrays[name] = values.reshape(shape)
        self._row_bytes = len(self._map) // max(batch.num_rows, 1) + _AROUND
        self._used = 0

    def _part(self, buffer: pa.Buffer, memory: pa.Buffer, dtype: np.dtype[Any]) -> np.ndarray:
        if not buffer.size:
            return np.empty(0, dtype)
        return np.frombuffer(self._map, dtype, buffer.size // dtype.itemsize, buffer.address - memory.address)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._map)

    def used(self, rows: int) -> None:
        """Says that so many rows were read or written since the last time. Now and then the process lets go of what it has
        mapped: else it would seem to take as much memory as the file, and be killed where that is limited."""
        self._used += rows * self._row_bytes
        if self._used > _HELD and self.size > _HELD:
            self._let_go()

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Rows of one of :attr:`arrays` in memory of their own. Meanwhile the process holds no more of the file than usual."""
        found = np.empty_like(array)
        size = max(1, _HELD * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), size):
            found[start : start + size] = array[start : start + size]
            self._let_go()
        return found

    def _let_go(self) -> None:
        self._used = 0
        self._map.madvise(mmap.MADV_DONTNEED)


def tensor(array: np.ndarray) -> torch.Tensor:
    """``array`` as a tensor in the same memory, which may be one that cannot be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)
