"""Partition of a DataFrame as a torch dataset, for users' own training functions.

The rows are written once to an Arrow file. Each epoch reads them through a memory map, so they do not have to fit into
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DecimalType, NumericType, StringType
from torch.utils.data import IterableDataset, get_worker_info

from sparkdl_comm.data.arrow import count_null_rows
from sparkdl_comm.errors import InputError

_PLAIN_TYPES = (NumericType, BooleanType, StringType, BinaryType)


def tensor_columns(df: DataFrame) -> DataFrame:
    """Return ``df`` with Vectors as arrays of float32 and decimals as doubles, for :class:`PartitionDataset`.

    :raises InputError: a column is not a number, boolean, text, binary, Vector or array of numbers; or two have one
        name.
    """
    columns = []
    for field in df.schema.fields:
        if df.columns.count(field.name) > 1:
            raise InputError(
                f"there are {df.columns.count(field.name)} columns named {field.name!r}; rename or drop one"
            )
        column, kind = F.col("`" + field.name.replace("`", "``") + "`"), field.dataType
        if isinstance(kind, VectorUDT):  # vector_to_array throws on null
            column = F.when(column.isNotNull(), vector_to_array(column, "float32"))
        elif isinstance(kind, DecimalType):
            column = column.cast("double")
        elif isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType):
            if isinstance(kind.elementType, DecimalType):
                column = column.cast("array<double>")
        elif not isinstance(kind, _PLAIN_TYPES):
            raise InputError(
                f"column {field.name!r} is {kind.simpleString()}; accepted are numbers, booleans, text, binary, Vectors and"
                " arrays of numbers. Select only the columns that train_fn needs"
            )
        columns.append(column.alias(field.name))
    return df.select(*columns)


class PartitionDataset(IterableDataset[dict[str, Any]]):
    """Rows of this rank as dicts by column name, as ``torch.utils.data.DataLoader`` collates them.

    A number or boolean is a scalar tensor of the column's type. An array of numbers or a Vector (float32) is a tensor
    ``[length]``. Text and binary are ``str`` and ``bytes``. ``len()`` is the number of rows. You may iterate any number
    of times. The workers of a DataLoader share the rows among them.

    Ranks may have different numbers of rows, or none. A loop with collectives, such as DistributedDataParallel's, must
    run the same number of steps on all ranks. ``Communicator.in_step(loader)`` stops all of them when the first rank
    has no batch left.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], folder: Path) -> None:
        """Write ``batches`` to a file in ``folder``. The caller removes the folder.

        :raises InputError: there are nulls. The message names the column and the number of rows.
        """
        self._file = folder / "partition.arrow"
        self._rows = 0
        nulls: dict[str, int] = {}
        first = next(batches, None)
        if first is None:
            return
        with pa.OSFile(str(self._file), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
            for batch in itertools.chain([first], batches):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    nulls[name] = nulls.get(name, 0) + count_null_rows(column)
                self._rows += batch.num_rows
                writer.write_batch(batch)
        problems = [f"{count} of {self._rows} rows have a null in {name!r}" for name, count in nulls.items() if count]
        if problems:
            raise InputError("; ".join(problems) + ". Drop or fill these rows before, e.g. with df.dropna()")

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is None:
            return self._iterate_rows()
        return itertools.islice(self._iterate_rows(), worker.id, None, worker.num_workers)

    def _iterate_rows(self) -> Iterator[dict[str, Any]]:
        if self._rows == 0:
            return
        with pa.memory_map(str(self._file)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                names = batch.schema.names
                for row in zip(*map(_split_rows, batch.columns), strict=True):
                    yield dict(zip(names, row, strict=True))


def _split_rows(column: pa.Array) -> Any:
    """Return an iterable over the rows of a column without nulls."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        flat = torch.from_numpy(np.array(column.flatten().to_numpy(zero_copy_only=False)))
        return torch.split(flat, np.diff(column.offsets.to_numpy()).tolist())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return torch.from_numpy(np.array(column.to_numpy(zero_copy_only=False))).unbind()
    return column.to_pylist()
