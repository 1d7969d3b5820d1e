"""File of a rank's columns in Arrow's format, written and read through mapped memory.

The file has one record batch, so each column is contiguous and one tensor can hold all its rows. Arrow can only write a
record batch that is in memory. :func:`create` therefore writes the file with placeholder columns, skips their data, and
allocates the space. The values are filled in later through :class:`MappedFile`.
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
from numpy.typing import NDArray

from sparkdl_comm.data import arrow

#: Bytes of the mapped file that a process touches before it unmaps their pages. They stay in the page cache.
_MAPPED_BYTES = 256 << 20
#: Bytes that the kernel maps around one byte that is touched.
_FAULT_AROUND_BYTES = 64 << 10


@dataclass(frozen=True)
class ColumnLayout:
    """Layout of a column in the file.

    ``dtype``: type of the elements. ``shape``: of one row, or of one element if rows differ in length. ``offsets``: for
    rows that differ in length, int64 ``[rows + 1]``: where each row begins, and the end of the last one.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offsets: NDArray[np.int64] | None = None

    def size_bytes(self, rows: int) -> int:
        """Return the size of the column in bytes."""
        elements = rows if self.offsets is None else int(self.offsets[-1])
        return elements * math.prod(self.shape) * self.dtype.itemsize + (0 if self.offsets is None else 8 * (rows + 1))


def create(path: Path, columns: Mapping[str, ColumnLayout], rows: int) -> None:
    """Create a file without values (not even ``offsets``), and allocate its space on the disk.

    :param rows: at least 1.
    :raises OSError: the file cannot be written, or the disk is full.
    """
    with open(path, "x+b") as file, tempfile.TemporaryFile(dir=path.parent) as zeros:
        zeros.truncate(max(layout.size_bytes(rows) for layout in columns.values()) or 1)
        with mmap.mmap(zeros.fileno(), 0, access=mmap.ACCESS_READ) as view:
            memory = pa.py_buffer(view)
            arrays = [_build_array(layout, rows, memory) for layout in columns.values()]
            batch = pa.RecordBatch.from_arrays(arrays, list(columns))
            sink = _DatalessSink(file.fileno())
            options = pa.ipc.IpcWriteOptions(allow_64bit=True)
            with pa.ipc.new_file(pa.PythonFile(sink, "w"), batch.schema, options=options) as writer:
                writer.write_batch(batch)
            del memory, arrays, batch, writer  # so that the view can be closed
        os.posix_fallocate(file.fileno(), 0, sink.tell())  # writing to a mapped hole on a full disk raises SIGBUS


def _build_array(layout: ColumnLayout, rows: int, memory: pa.Buffer) -> pa.Array:
    count = rows if layout.offsets is None else int(layout.offsets[-1])
    length = count * math.prod(layout.shape)
    values = memory.slice(0, length * layout.dtype.itemsize)
    array = pa.Array.from_buffers(pa.from_numpy_dtype(layout.dtype), length, [None, values], 0)
    for depth in range(len(layout.shape), 0, -1):
        size = layout.shape[depth - 1]
        count_there = count * math.prod(layout.shape[: depth - 1])
        kind = pa.list_(array.type, size)
        array = pa.FixedSizeListArray.from_buffers(kind, count_there, [None], 0, children=[array])
    if layout.offsets is None:
        return array
    return pa.LargeListArray.from_arrays(pa.array(layout.offsets), array)


class _DatalessSink(io.RawIOBase):
    """Sink for Arrow that leaves holes for the columns' data. Arrow writes this data as buffers, all else as bytes."""

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
    """Columns of a file made by :func:`create`, in mapped memory.

    ``arrays``: by name, all rows ``[rows, …]`` or all elements ``[elements, …]``. ``offsets``: by name, only for
    columns whose rows differ in length. Writing to the arrays writes to the file. If the file is not ``writable``, that
    crashes the process.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        """Map the file at ``path``.

        :param writable: allow writes to the arrays, which change the file.
        :raises OSError: there is no such file, or it cannot be mapped.
        :raises pa.ArrowInvalid: it is not an Arrow file.
        """
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        with open(path, "r+b" if writable else "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=access)
        memory = pa.py_buffer(self._map)
        batch = pa.ipc.open_file(memory).get_batch(0)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.offsets: dict[str, NDArray[np.int64]] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_large_list(column.type):
                self.offsets[name] = self._view(column.buffers()[1], memory, np.dtype(np.int64))
                column = column.values
            kind, shape = column.type, [len(column)]
            while arrow.is_list(kind):
                shape.append(kind.list_size)
                kind = kind.value_type
            values = self._view(column.buffers()[-1], memory, np.dtype(kind.to_pandas_dtype()))
            self.arrays[name] = values.reshape(shape)
        self._row_bytes = len(self._map) // max(batch.num_rows, 1) + _FAULT_AROUND_BYTES
        self._touched_bytes = 0

    def _view(self, buffer: pa.Buffer, memory: pa.Buffer, dtype: np.dtype[Any]) -> NDArray[Any]:
        if not buffer.size:
            return np.empty(0, dtype)
        return np.frombuffer(self._map, dtype, buffer.size // dtype.itemsize, buffer.address - memory.address)

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return len(self._map)

    def record_use(self, rows: int) -> None:
        """Count ``rows`` more rows as read or written, and unmap the pages now and then.

        Mapped pages count as memory of the process. Without this, a container with a memory limit would kill it.
        """
        self._touched_bytes += rows * self._row_bytes
        if self._touched_bytes > _MAPPED_BYTES and self.size_bytes > _MAPPED_BYTES:
            self._release_pages()

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy in memory of rows of one of :attr:`arrays`, unmapping the pages while copying."""
        result = np.empty_like(array)
        size = max(1, _MAPPED_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), size):
            result[start : start + size] = array[start : start + size]
            self._release_pages()
        return result

    def _release_pages(self) -> None:
        self._touched_bytes = 0
        self._map.madvise(mmap.MADV_DONTNEED)


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return ``array`` as a tensor that shares its memory, which may be read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)
