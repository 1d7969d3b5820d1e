"""The executors' side of ``TorchModel.transform``: batches in, the same batches with what is predicted out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyspark import Broadcast, TaskContext

from .data import arrow
from .data.fields import Field
from .errors import ConfError, InputError
from .scoring import PREDICTION, Scoring
from .shipping import SessionModule
from .train.diagnosis import misfit


@dataclass(frozen=True)
class Predictor:
    """Function for ``mapInArrow``.

    ``module``: the module, or what :func:`~sparkdl_comm.shipping.ship` made of it. ``features``:
    index and description of each column that the module is called with. ``columns``: how many columns to keep, after
    which come those of ``scoring``; others that come in after them hold features converted for us. ``batch_size``:
    rows per forward pass. ``scoring``: what to make of the outputs. ``device``: cpu or cuda.

    :raises InputError: null features, or vectors of different lengths in one batch; with the number of rows. Features of
        another width than the model's first layer takes.
    :raises ModelError: the output does not have one row per row, or is a vector where a number was expected.
    """

    module: Broadcast[Any] | SessionModule | torch.nn.Module
    features: Sequence[tuple[int, Field]]
    columns: int
    batch_size: int
    scoring: Scoring
    device: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        module: torch.nn.Module | None = None
        device = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if module is None:  # not before: an empty partition needs neither the model nor a GPU
                device = task_device(self.device)
                shipped = self.module if isinstance(self.module, torch.nn.Module) else self.module.value
                module = shipped.to(device).eval()
            predicted = self._predict(module, device, batch)
            columns, names = batch.columns[: self.columns], batch.schema.names[: self.columns]
            yield pa.RecordBatch.from_arrays([*columns, *predicted], names=[*names, *self.scoring.columns])

    def _outputs(self, module: torch.nn.Module, rows: list[torch.Tensor]) -> Any:
        try:
            return module(*rows)
        except RuntimeError:
            problem = misfit(module, rows, [field for _, field in self.features])
            if problem is None:
                raise
            raise InputError(problem) from None

    def _predict(self, module: torch.nn.Module, device: torch.device | None, batch: pa.RecordBatch) -> list[pa.Array]:
        inputs = [arrow.read(field, batch.column(index)) for index, field in self.features]
        outputs = []
        with torch.inference_mode():
            for start in range(0, batch.num_rows, self.batch_size):
                rows = [
                    torch.from_numpy(values[start : start + self.batch_size].copy()).to(device) for values in inputs
                ]
                outputs.append(_on_cpu(self._outputs(module, rows)))
            columns = [column.numpy() for column in self.scoring(_joined(outputs), batch.num_rows)]
        members = list(self.scoring.members)
        if members:
            return [pa.StructArray.from_arrays([_arrow(PREDICTION, column) for column in columns], names=members)]
        return [_arrow(name, column) for name, column in zip(self.scoring.columns, columns, strict=True)]


def _on_cpu(output: Any) -> Any:
    """A tensor, or several as a dict or tuple, off the GPU."""
    if isinstance(output, Mapping):
        return {name: _on_cpu(part) for name, part in output.items()}
    if isinstance(output, (tuple, list)):
        return tuple(map(_on_cpu, output))
    return output.cpu() if isinstance(output, torch.Tensor) else output


def _joined(outputs: Sequence[Any]) -> Any:
    """What the model would have returned for all rows at once."""
    first = outputs[0]
    if isinstance(first, Mapping):
        return {name: _joined([output[name] for output in outputs]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*outputs, strict=True)))
    return torch.cat(list(outputs)) if isinstance(first, torch.Tensor) and first.dim() and len(outputs) > 1 else first


def _arrow(name: str, values: np.ndarray) -> pa.Array:
    """A column of numbers from ``[rows]``; from ``[rows, k]`` the prediction is of lists, any other of ML Vectors."""
    if values.ndim == 1:
        return pa.array(values)
    rows, width = values.shape
    lists = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * width, pa.array(values.reshape(-1)))
    if name == PREDICTION:
        return lists
    # dense vectors, as pyspark.ml.linalg.VectorUDT stores them
    fields = [
        pa.array(np.ones(rows, np.int8)),
        pa.nulls(rows, pa.int32()),
        pa.nulls(rows, pa.list_(pa.int32())),
        lists,
    ]
    return pa.StructArray.from_arrays(fields, names=["type", "size", "indices", "values"])


def task_device(name: str) -> torch.device:
    """The device of this task: the GPU that Spark assigned to it, if any, when ``name`` is cuda.

    :raises ConfError: cuda, but there is none on this executor.
    """
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ConfError("device=cuda, but this executor has no GPU that torch can use; set device to cpu")
    task = TaskContext.get()
    assigned = task.resources().get("gpu") if task is not None else None
    return torch.device("cuda", int(assigned.addresses[0]) if assigned else 0)
