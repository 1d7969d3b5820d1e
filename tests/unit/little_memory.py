"""Run by test_large_rows.py, in a process that may take less memory of its own than its rows have bytes: reads them and trains
for two epochs. Arguments: ``disk`` or ``memory``, and a folder. Prints on how many rows it has trained, or that it was refused
memory."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from sparkdl_comm.data.cache import RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from tests.unit.ranks import train

BATCHES, ROWS, WIDTH = 48, 50, 25_000
EPOCHS = 2
#: Bytes of memory of its own that the process may take beyond what it has before it reads.
MORE = 128 << 20
FORMAT = RowFormat((Field("featuresCol", "x"),), (Field("labelCol", "y", "float32", (1,)),))


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """5 MB each."""
    drawn = np.random.default_rng(3)
    for number in range(count):
        values = drawn.random((ROWS, WIDTH), np.float32)
        yield pa.RecordBatch.from_arrays(
            [
                pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype=np.int32) * WIDTH, values.ravel()),
                pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype=np.int32), values[:, 0].copy()),
                pa.array(np.arange(ROWS) + number * ROWS),
            ],
            names=["input0", "target0", "id"],
        )


def bound() -> None:
    """Limits private memory that can be written to, so not files that are mapped."""
    own = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert own is not None
    limit = int(own[1]) * 1024 + MORE
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def gentle(params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1e-6)


def fit(count: int, disk: LocalDisk | None) -> int:
    """The number of rows that it has trained on."""
    reading = RowReader(batches(count), FORMAT, disk)
    assert reading.account["problem"] is None
    rows = reading.rows([reading.account]).training
    (loop,) = train(lambda: nn.Linear(WIDTH, 1), [rows], batch=ROWS, epochs=EPOCHS, optimizer=gentle)
    reading.close()
    return loop.progress.step * ROWS


def main() -> None:
    cache, folder = sys.argv[1:]
    disk = LocalDisk(Path(folder), 1 << 30) if cache == "disk" else None
    torch.set_num_threads(1)
    fit(1, disk)  # loads and starts all that it needs
    bound()
    try:
        print(fit(BATCHES, disk))
    except (MemoryError, pa.ArrowMemoryError):
        print("refused")


if __name__ == "__main__":
    main()
