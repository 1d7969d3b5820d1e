"""Encoded columns: what decode makes of them, and what it may not make."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl_comm.data import arrow
from sparkdl_comm.data.cache import RowCache, RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.errors import InputError

IMAGES = [bytes(range(start, start + 6)) for start in (0, 10, 20)]
LABEL = Field("labelCol", "y", "int64", ())


def image(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(2, 3)


def field(decode: Any, **more: Any) -> Field:
    return Field("featuresCol", "image", decode=decode, **more)


def batch(values: list, kind: pa.DataType | None = None) -> pa.RecordBatch:
    columns = {
        "input0": pa.array(values, kind or pa.binary()),
        "target0": pa.array([0] * len(values), pa.int64()),
        "id": pa.array(range(len(values)), pa.int64()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def read(decode: Any, *batches: pa.RecordBatch, **more: Any) -> RowCache:
    reading = RowReader(batches, RowFormat((field(decode, **more),), (LABEL,)))
    return reading.rows([reading.account]).training


EXPECTED = torch.tensor([[[i, i + 1, i + 2], [i + 3, i + 4, i + 5]] for i in (0, 10, 20)])


def test_training_and_transform_decode_alike() -> None:
    for decode in (image, lambda data: torch.tensor(list(data)).reshape(2, 3) / 1):
        assert torch.equal(read(decode, batch(IMAGES[:1]), batch(IMAGES[1:])).inputs[0][1:], EXPECTED[1:].float())
        column = arrow.read(field(decode), pa.array(IMAGES))
        assert (column.dtype, column.tolist()) == (np.float32, EXPECTED.tolist())
    kept = read(image, batch(IMAGES), dtype="uint8", shape=(1, 6)).inputs[0]
    assert torch.equal(kept, EXPECTED.reshape(3, 1, 6).to(torch.uint8))
    numbers = read(len, batch(["a", "bcd"], pa.string())).inputs[0]
    assert numbers.tolist() == [[1.0], [3.0]]
    flags = read(lambda text: np.array([letter == "a" for letter in text]), batch(["ab", "ba"], pa.string()))
    assert flags.inputs[0].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def of_its_length(data: bytes) -> np.ndarray:
    return np.zeros((len(data), 2))


def of_its_depth(data: bytes) -> np.ndarray:
    return np.zeros([1] * len(data))


@pytest.mark.parametrize(
    ("decode", "in_a_batch", "in_two", "on_two_ranks"),
    [
        (
            of_its_length,
            r"returns arrays of different shapes: \[1, 2\], \[2, 2\]; it must give all rows the same",
            "has arrays of different lengths in 2 rows: 1, 2",
            "has arrays of different lengths in 2 rows: 1, 2",
        ),
        (
            of_its_depth,
            r"returns arrays of different shapes: \[1\], \[1, 1\]",
            "1 of 2 rows have arrays of 2 dimensions, others of 1",
            r"has arrays of \[1, 2\] dimensions",
        ),
    ],
)
def test_different_shapes(decode: Any, in_a_batch: str, in_two: str, on_two_ranks: str) -> None:
    rows = RowFormat((field(decode),), (LABEL,))
    short, long = batch([b"a"]), batch([b"ab"])
    with pytest.raises(InputError, match=f"decode of featuresCol 'image' {in_a_batch}"):
        read(decode, batch([b"a", b"ab"]))
    with pytest.raises(InputError, match=in_two):
        read(decode, short, long)
    accounts = [RowReader([each], rows).account for each in (short, long)]
    with pytest.raises(InputError, match=f"decode of featuresCol 'image' {on_two_ranks}"):
        RowReader([short], rows).rows(accounts)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda data: {}["jpeg"], "decode of featuresCol 'image' raised KeyError for a value of length 6: 'jpeg'"),
        (lambda data: "text", r"decode of featuresCol 'image' must return numbers, not an array of <U4 of shape \[\]"),
        (lambda data: [], r"must return numbers, not an array of float64 of shape \[0\]"),
        (
            lambda data: image(data) * math.nan,
            "3 of 3 rows have a NaN or infinite value in decode of featuresCol 'image'",
        ),
    ],
)
def test_refused(decode: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(decode, batch(IMAGES))


def test_nulls_are_counted() -> None:
    for values in ([IMAGES[0], None, IMAGES[1], None], [None, None]):
        with pytest.raises(
            InputError, match=rf"2 of {len(values)} rows have a null .* in decode of featuresCol 'image'"
        ):
            read(image, batch(values))
    with pytest.raises(InputError, match="1 of 2 rows of a batch have null features"):
        arrow.read(field(image), pa.array([IMAGES[0], None]))
