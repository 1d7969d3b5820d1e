"""The executors' side of ``TorchModel.transform``: batches in, the same batches with a prediction out."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyspark import Broadcast, TaskContext, cloudpickle

from .data.cache import lengths, matrix, null_rows
from .errors import ConfError, InputError, ModelError

#: Name of the column that a :class:`Predictor` adds.
PREDICTION = "prediction"


class Shipped:
    """A module to broadcast. What executors find in the broadcast is the module itself, made once per Python
    worker.

    Spark pickles the value of a broadcast without cloudpickle, so that a class from a notebook would not
    arrive.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (cloudpickle.dumps(self.module),)


@dataclass(frozen=True)
class Predictor:
    """Function for ``mapInArrow``.

    ``module``: broadcast of :class:`Shipped`, or the module (Spark Connect has no broadcasts). ``features``:
    index of the features' column. ``columns``: how many columns to keep, after which comes the prediction;
    one that comes in after them holds features converted for us. ``batch_size``: rows per forward pass.
    ``classification``: predict the index of the largest output. ``vector``: otherwise, predict
    ``array<float>``, not a number. ``device``: cpu or cuda.

    :raises InputError: null features, or vectors of different lengths in one batch; with the number of rows.
    :raises ModelError: the output does not have one row per row, or is a vector where a number was expected.
    """

    module: Broadcast[Any] | torch.nn.Module
    features: int
    columns: int
    batch_size: int
    classification: bool
    vector: bool
    device: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        module: torch.nn.Module | None = None
        device = None
        for batch in batches:
            if module is None:  # not before: an empty partition needs neither the model nor a GPU
                device = task_device(self.device)
                shipped = self.module.value if isinstance(self.module, Broadcast) else self.module
                module = shipped.to(device).eval()
            predicted = self._predict(module, device, batch.column(self.features))
            columns, names = batch.columns[: self.columns], batch.schema.names[: self.columns]
            yield pa.RecordBatch.from_arrays([*columns, predicted], names=[*names, PREDICTION])

    def _predict(self, module: torch.nn.Module, device: torch.device | None, column: pa.Array) -> pa.Array:
        nulls = null_rows(column)
        if nulls:
            raise InputError(
                f"{nulls} of {len(column)} rows of a batch have null features (or a null element in them); "
                "drop or fill them before transform, e.g. with df.dropna()"
            )
        found = sorted(lengths(column))
        if len(found) > 1:
            raise InputError(f"feature vectors of different lengths in {len(column)} rows: {found[:8]}")
        values = matrix(column)
        outputs = [np.empty((0, 1), np.float32)]
        with torch.inference_mode():
            for start in range(0, len(values), self.batch_size):
                rows = torch.from_numpy(values[start : start + self.batch_size].copy())
                outputs.append(self._answer(module(rows.to(device)), len(rows)))
        return self._column(outputs[1:] or outputs)

    def _answer(self, output: Any, rows: int) -> np.ndarray:
        """The predictions for some rows, ``[rows, k]``, k = 1 unless they are vectors."""
        if not isinstance(output, torch.Tensor) or output.dim() == 0 or output.shape[0] != rows:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise ModelError(f"the model must return a tensor with one row per row of input, {rows}; it returned {got}")
        output = output.reshape(rows, -1)
        if self.classification and output.shape[1] > 1:
            output = output.argmax(1, keepdim=True)
        elif output.shape[1] != 1 and not self.vector:
            raise ModelError(
                f"the model returned {output.shape[1]} values per row, where one was expected: set "
                f"model.output_shape = [{output.shape[1]}] to have them as an array"
            )
        return output.double().cpu().numpy() if not self.vector else output.float().cpu().numpy()

    def _column(self, outputs: Sequence[np.ndarray]) -> pa.Array:
        values = np.concatenate(outputs)
        if not self.vector:
            return pa.array(values[:, 0], pa.float64())
        offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values.reshape(-1), pa.float32()))


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
