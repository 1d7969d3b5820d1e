"""What an executor holds at once while it predicts: rows, decoded values and outputs of one forward pass at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from sparkdl_comm.data import arrow
from sparkdl_comm.data.cache import RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.ml import prediction
from sparkdl_comm.ml.prediction import Predictor
from sparkdl_comm.ml.scoring import Kind, Scoring


class Watched(torch.nn.Module):
    """Doubles its rows; ``seen``: how many each call had."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.log.append(len(rows))
        return 2 * rows[:, :2]


def predicted(field: Field, column: Any, log: list[Any], kind: Kind = "vector", batch: int = 4) -> list[pd.DataFrame]:
    predictor = Predictor(Watched(log), [field], batch, Scoring(kind, None, ("prediction",)), "cpu")
    return list(predictor.predict(iter([(column,)])))


def test_decodes_by_forward_pass() -> None:
    log: list[Any] = []

    def decode(value: bytes) -> np.ndarray:
        log.append("decode")
        return np.frombuffer(value, np.float32)

    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    column = pd.Series([row.tobytes() for row in rows])
    (frame,) = predicted(Field("featuresCol", "x", decode=decode), column, log)
    assert log == [*["decode"] * 4, 4, *["decode"] * 4, 4, *["decode"] * 2, 2]
    assert np.array_equal(np.stack(frame[0].to_numpy()), 2 * rows)


def test_outputs_leave_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two forward passes of 4 rows of 8 bytes."""
    monkeypatch.setattr(prediction, "_PART_BYTES", 64)
    rows = np.arange(22, dtype=np.float32).reshape(11, 2)
    frames = predicted(Field("featuresCol", "x"), pd.Series(list(rows)), [])
    assert [len(frame) for frame in frames] == [8, 3]
    assert np.array_equal(np.stack(pd.concat(frames)[0].to_numpy()), 2 * rows)


def test_sparse_vectors_are_whole_a_few_at_a_time() -> None:
    log: list[int] = []
    width = 1 << 18
    column = pd.DataFrame({
        "type": np.zeros(100, np.int8),
        "size": np.full(100, width, np.int32),
        "indices": [np.array([0, 1 + number], np.int32) for number in range(100)],
        "values": [np.array([number, 1.0]) for number in range(100)],
    })  # fmt: skip
    frames = predicted(Field("featuresCol", "x"), column, log, batch=256)
    assert log == [64, 36]
    scored = np.stack(pd.concat(frames)[0].to_numpy())
    assert scored.tolist() == [[2.0 * number, 2.0 if number == 0 else 0.0] for number in range(100)]


def test_ranks_decode_a_batch_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 bytes; rows have 40 and 12."""
    monkeypatch.setattr(arrow, "_PART_BYTES", 1000)
    field = Field("featuresCol", "x", decode=lambda value: np.frombuffer(value, np.float32))
    form = RowFormat((field,), (Field("labelCol", "y", "float32", ()),))
    rows = np.random.default_rng(3).random((50, 10), np.float32)
    table = {"input0": [row.tobytes() for row in rows], "target0": rows[:, 0], "id": np.arange(50)}
    batch = pa.RecordBatch.from_pydict(table)
    assert [len(part) for part in arrow.decode_batch(batch, form)] == [8, 19, 19, 4]
    reading = RowReader([batch], form)
    (found,) = reading.rows([reading.account]).training.inputs
    assert np.array_equal(found.numpy(), rows)
