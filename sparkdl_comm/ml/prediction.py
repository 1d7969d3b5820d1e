"""Executors' side of ``TorchModel.transform``: a pandas UDF from features to predictions.

Columns that the model does not need stay in the JVM. Results are Arrow arrays within pandas, so nothing is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyspark import Broadcast, TaskContext

from sparkdl_comm.data import arrow
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import Ragged, call
from sparkdl_comm.errors import InputError
from sparkdl_comm.job.broadcasts import SessionModule
from sparkdl_comm.job.gpu import task_gpu
from sparkdl_comm.ml.scoring import Scoring
from sparkdl_comm.train.diagnosis import explain_error

_VECTOR = {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}


def _read_column(field: Field, column: pd.Series | pd.DataFrame) -> NDArray[Any] | Ragged:
    """Return all rows of a feature column, and raise errors, as :func:`sparkdl_comm.data.arrow.read` does.

    pandas turns null elements of an array into NaN. So the JVM marks nulls before
    (:func:`sparkdl_comm.ml.columns.scoring_inputs`): an array with a null element comes as null, and a number comes with
    a flag.

    :param column: a number: DataFrame of ``value`` and ``null``. An array, nested too: Series of arrays, or None. A
        Vector: DataFrame of ``type``, ``size``, ``indices``, ``values``. Binary or text: Series of these, or None.
    """
    if field.decode is not None:
        return arrow.read(field, pa.array(column, from_pandas=True))
    if "value" in column:
        arrow.refuse_nulls(field, int(column["null"].sum()), len(column))
        return arrow.cast_rows(field, column["value"].to_numpy())
    if isinstance(column, pd.DataFrame):
        kinds = column["type"]
        if field.dtype == "sparse" or not (kinds == 1).all():  # nulls, or sparse
            parts = [pa.array(column[name], kind, from_pandas=True) for name, kind in _VECTOR.items()]
            rows = pa.StructArray.from_arrays(parts, list(_VECTOR), mask=pa.array(kinds.isna()))
            return arrow.read(field, rows)
        column = column["values"]
    arrow.refuse_nulls(field, int(column.isna().sum()), len(column))
    arrays = column.to_numpy()
    if field.collate is None:
        return arrow.cast_rows(field, _stack(field, arrays, len(column)))
    elements = np.concatenate(arrays)
    if elements.dtype == object and len(elements):
        elements = _stack(field, elements, len(column))
    return Ragged.of(field, elements, np.array([len(array) for array in arrays]))


def _stack(field: Field, arrays: NDArray[Any], rows: int) -> NDArray[Any]:
    """Stack ``arrays`` to ``[rows, length, …]``.

    :raises InputError: they differ in length.
    """
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise InputError(f"{field}: arrays of different lengths in {rows} rows: {arrow.format_lengths([lengths])}")
    flat: NDArray[Any] = np.concatenate(arrays)
    if flat.dtype == object:
        flat = _stack(field, flat, rows)
    return flat.reshape(len(arrays), *lengths, *flat.shape[1:])


#: Maximum bytes of outputs per result, and of dense rows of sparse Vectors per forward pass.
_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class Predictor:
    """Predictor whose method :meth:`predict` is the function of a pandas UDF.

    ``module``: the module, or the result of ``job.broadcasts.broadcast_module``. ``features``: descriptions of
    the model's input columns. ``batch_size``: rows per forward pass. ``scoring``: conversion of outputs to columns.
    ``device``: cpu or cuda.

    :raises InputError: features are null, or vectors in a batch differ in length (with the number of rows); or features
        have another width than the model's first layer.
    :raises ModelError: the output does not have one row per input row, or is a vector where a number was expected; or
        collate_fn raised.
    """

    module: Broadcast[Any] | SessionModule | torch.nn.Module
    features: Sequence[Field]
    batch_size: int
    scoring: Scoring
    device: str

    def predict(self, batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:
        """Yield a DataFrame per part of the input, with one column per tensor of ``scoring``, in its order.

        :param batches: feature columns, see :func:`_read_column`.
        """
        module: torch.nn.Module | None = None
        device = None
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            if not len(columns[0]):
                continue
            if module is None:  # an empty partition needs neither the model nor a GPU
                device = task_device(self.device)
                shipped = self.module if isinstance(self.module, torch.nn.Module) else self.module.value
                module = shipped.to(device).eval()
            for predicted in self._predict(module, device, columns):
                yield pd.DataFrame(
                    {name: pd.arrays.ArrowExtensionArray(pa.chunked_array([c])) for name, c in enumerate(predicted)}
                )

    def _run_model(self, module: torch.nn.Module, rows: list[Any]) -> Any:
        try:
            return call(module, rows)
        except (RuntimeError, IndexError) as exc:
            problem = explain_error(exc, module, rows, self.features)
            if problem is None:
                raise
            raise InputError(problem) from None

    def _predict(
        self, module: torch.nn.Module, device: torch.device | None, columns: tuple[pd.Series, ...]
    ) -> Iterator[list[pa.Array]]:
        """Yield the predictions for a batch, in parts of about :data:`_PART_BYTES` bytes at most.

        Reads, decodes and densifies the rows of one forward pass at a time.
        """
        count = len(columns[0])
        size = min([self.batch_size, *map(_max_rows, columns)])
        outputs: list[Any] = []
        first = 0
        for start in range(0, count, size):
            stop = min(start + size, count)
            with torch.inference_mode():
                parts = (column.iloc[start:stop] for column in columns)
                inputs = [_to_argument(_read_column(*each), device) for each in zip(self.features, parts, strict=True)]
                outputs.append(_to_cpu(self.scoring.select(self._run_model(module, inputs))))
                if stop < count and _count_bytes(outputs[0]) * (len(outputs) + 1) <= _PART_BYTES:
                    continue
                scored = self.scoring(_concatenate(outputs), stop - first)
            yield [_to_arrow(column.numpy()) for column in scored]
            outputs, first = [], stop


def _max_rows(column: pd.Series | pd.DataFrame) -> int:
    """Return the maximum rows per forward pass: for sparse Vectors, :data:`_PART_BYTES` bytes of dense rows."""
    width = column["size"].max() if isinstance(column, pd.DataFrame) and "size" in column else None
    return max(1, _PART_BYTES // int(4 * width)) if width is not None and width > 0 else sys.maxsize


def _to_argument(values: NDArray[Any] | Ragged, device: torch.device | None) -> Any:
    """Return the model's argument for the rows of a column."""
    if isinstance(values, Ragged):
        return values.to(device).collate()
    return torch.from_numpy(np.array(values)).to(device)


def _count_bytes(output: Any) -> int:
    if isinstance(output, Mapping):
        return sum(map(_count_bytes, output.values()))
    if isinstance(output, tuple):
        return sum(map(_count_bytes, output))
    return output.nbytes if isinstance(output, torch.Tensor) else 0


def _to_cpu(output: Any) -> Any:
    """Move a tensor, or several in a dict or tuple, to the CPU."""
    if isinstance(output, Mapping):
        return {name: _to_cpu(part) for name, part in output.items()}
    if isinstance(output, (tuple, list)):
        return tuple(map(_to_cpu, output))
    return output.cpu() if isinstance(output, torch.Tensor) else output


def _concatenate(outputs: Sequence[Any]) -> Any:
    """Concatenate outputs to the output that the model would have returned for all rows."""
    first = outputs[0]
    if isinstance(first, Mapping):
        return {name: _concatenate([output[name] for output in outputs]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_concatenate, zip(*outputs, strict=True)))
    return torch.cat(list(outputs)) if isinstance(first, torch.Tensor) and first.dim() and len(outputs) > 1 else first


def _to_arrow(values: NDArray[Any]) -> pa.Array:
    """Return an Arrow column: numbers for ``[rows]``, lists for ``[rows, k]``."""
    if values.ndim == 1:
        return pa.array(values)
    rows, width = values.shape
    return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * width, pa.array(values.reshape(-1)))


def task_device(name: str) -> torch.device:
    """Return the device of this task. For cuda: the GPU that Spark assigned to it, else the host's first one.

    :raises SlotsError: cuda, but this executor has no GPU.
    :raises ConfError: cuda, but torch does not see the GPU that Spark assigned.
    """
    if name != "cuda":
        return torch.device(name)
    task = TaskContext.get()
    return task_gpu(task.resources() if task is not None else {}, index_on_host=0)
