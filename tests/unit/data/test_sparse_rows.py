"""Vectors on their way to a model: whole or pairs, as each is stored, until a batch is made of them, in memory, on the
disk, between ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml.linalg import Vectors

from sparkdl_comm.data import arrow, vectors
from sparkdl_comm.data.cache import RowCache, RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError
from tests.unit.data.test_vectors import column
from tests.unit.ranks import train

WIDTH, ROWS = 1 << 12, 24
FIELD = Field("featuresCol", "x", width=0)
FORMAT = RowFormat((FIELD,), (Field("labelCol", "y", "float32", ()),))
WHOLE = RowFormat((replace(FIELD, width=None),), FORMAT.targets)


def rows(count: int = ROWS) -> list[Any]:
    """Each twelfth one is dense; one has no value at all, and one stores a zero."""
    random = np.random.default_rng(5)
    found: list[Any] = []
    for number in range(count):
        places = np.sort(random.choice(WIDTH, number % 7, replace=False))
        row = Vectors.sparse(WIDTH, places, random.normal(size=len(places)))
        found.append(Vectors.dense(row.toArray()) if number % 12 == 2 else row)
    found[-1] = Vectors.sparse(WIDTH, {3: 0.0, 5: 2.0})
    return found


def whole(given: list[Any]) -> torch.Tensor:
    return torch.tensor(np.stack([row.toArray() for row in given]), dtype=torch.float32)


def sent(field: Field, given: list[Any]) -> pa.StructArray:
    """As ``fit`` lets Spark send it."""
    read = column(given)
    _, sizes, indices, values = read.flatten()
    if not field.is_wide:
        values = values.cast(pa.list_(pa.float32()))
    return pa.StructArray.from_arrays([sizes, indices, values], ["size", "indices", "values"], mask=read.is_null())


def batches(form: RowFormat, vectors_given: list[Any] | None = None, first: int = 0) -> list[pa.RecordBatch]:
    """``first``: id of the first row."""
    given = sent(form.inputs[0], rows() if vectors_given is None else vectors_given)
    count = len(given)
    if form.inputs[0].width is None:
        given = vectors.to_lists(given)
    ids = np.arange(first, first + count)
    table = {"input0": given, "target0": pa.array(ids.astype(np.float32)), "id": pa.array(ids)}
    batch = pa.RecordBatch.from_pydict(table)
    return [batch.slice(start, 10) for start in range(0, count, 10)]


@pytest.mark.parametrize("dtype", [None, "float64", "int64", "sparse"])
def test_a_batch_is_what_the_rows_are(dtype: str | None) -> None:
    given = rows() if dtype != "int64" else [Vectors.sparse(WIDTH, {1: 3.0, 7: 2.0**40}), Vectors.dense([1.0] * WIDTH)]
    expected = torch.tensor(np.stack([row.toArray() for row in given]))
    field = replace(FIELD, dtype=dtype, width=WIDTH)
    read = Ragged.of(field, *vectors.to_words(field, column(given)))
    got = read.take(torch.arange(len(given)).flip(0), None)
    assert got.is_sparse == (dtype == "sparse")
    if got.is_sparse:
        assert got.is_coalesced()
        got = got.to_dense()
    assert got.dtype == {None: torch.float32, "sparse": torch.float32}.get(dtype, getattr(torch, dtype or "float32"))
    assert torch.equal(got, expected.flip(0).to(got.dtype))
    assert read.take(torch.arange(0), None).shape == (0, WIDTH), "for models with collectives"


@pytest.mark.parametrize("dtype", [None, "sparse"])
def test_rows_without_values_are_zeros(dtype: str | None) -> None:
    """As HashingTF makes of texts without words; a predict batch may have no others."""
    got = arrow.read(Field("featuresCol", "x", dtype), column([Vectors.sparse(WIDTH, {})] * 2)).collate()
    assert torch.equal(got.to_dense(), torch.zeros(2, WIDTH))


@pytest.mark.parametrize("dtype", [None, "sparse"])
def test_rows_are_of_the_shape_of_input_shapes(dtype: str | None) -> None:
    field = Field("featuresCol", "x", dtype, (2, WIDTH // 2))
    got = arrow.read(field, column(rows())).collate()
    assert got.is_sparse == (dtype == "sparse")
    assert torch.equal(got.to_dense(), whole(rows()).reshape(ROWS, 2, WIDTH // 2))
    with pytest.raises(
        InputError, match=r"inputShapes: \[2, 3\] does not fit the rows of featuresCol .x., of shape \(4096,\)"
    ):
        arrow.read(replace(field, shape=(2, 3)), column(rows()))


@pytest.mark.parametrize("shuffle", ["local", "global"])
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_rank_whose_rows_have_no_values(tmp_path: Path, cache: str, shuffle: str) -> None:
    def weight(form: RowFormat) -> torch.Tensor:
        parts = []
        for rank, row in enumerate((Vectors.sparse(WIDTH, {}), Vectors.sparse(WIDTH, {3: 2.0}))):
            folder = tmp_path / f"{form.inputs[0].width} {rank}"
            folder.mkdir()
            disk = LocalDisk(folder, 1 << 30) if cache == "disk" else None
            parts.append(RowReader(batches(form, [row] * 4), form, disk))
        caches = [part.rows([part.account for part in parts]).training for part in parts]
        settings: dict[str, Any] = {"batch": 2, "epochs": 2, "conf": {"data_shuffle": shuffle}}
        loops = train(lambda: torch.nn.Linear(WIDTH, 1), caches, rows=form, **settings)
        for part in parts:
            part.close()
        return loops[0].model.module.weight.detach()

    assert torch.equal(weight(FORMAT), weight(WHOLE))


def test_wide_vectors_stay_pairs_and_others_do_not() -> None:
    assert isinstance(arrow.read(FIELD, column(rows())), Ragged)
    assert torch.equal(arrow.read(FIELD, column(rows())).collate(), whole(rows()))
    narrow = [Vectors.sparse(3, {0: 1.0, 1: 1.0}), Vectors.dense(1.0, 2.0, 3.0)]
    dense = [Vectors.dense([0.0] * WIDTH), Vectors.sparse(WIDTH, range(WIDTH // 4 + 1), [1.0] * (WIDTH // 4 + 1))]
    for given in (narrow, dense):
        assert isinstance(arrow.read(FIELD, column(given)), np.ndarray)
        assert arrow.read(replace(FIELD, dtype="sparse"), column(given)).collate().is_sparse


def kept(given: list[list[Any]], dtype: str | None = None) -> list[Any]:
    """The columns of ranks that get these rows in batches."""
    form = replace(FORMAT, inputs=(replace(FIELD, dtype=dtype),))
    firsts = np.cumsum([0, *map(len, given[:-1])])
    readings = [RowReader(batches(form, part, int(first)), form) for part, first in zip(given, firsts, strict=True)]
    return [reading.rows([each.account for each in readings]).training.inputs[0] for reading in readings]


def in_batch(found: Any) -> torch.Tensor:
    index = torch.arange(len(found))
    return found.take(index, None) if isinstance(found, Ragged) else found[index]


def test_each_row_is_kept_as_it_is_stored_whatever_comes_first() -> None:
    sparse = [row for row in rows(40) if row.toArray().nonzero()[0].size < 7 and not hasattr(row, "array")]
    dense = [Vectors.dense(np.random.default_rng(seed).normal(size=WIDTH)) for seed in range(14)]
    (first,), (last,) = kept([dense + sparse]), kept([sparse + dense])
    for found, given in ((first, dense + sparse), (last, sparse + dense)):
        assert found.lengths.tolist() == [WIDTH if hasattr(row, "array") else 2 * len(row.values) for row in given]
        assert torch.equal(in_batch(found), whole(given))


def test_dense_rows_are_a_plain_tensor() -> None:
    """Rows are indexed at once, with 4 bytes a value."""
    given = [Vectors.dense(np.random.default_rng(seed).normal(size=1000)) for seed in range(8)]
    (found,) = kept([given])
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32
    assert torch.equal(found, whole(given))


@pytest.mark.parametrize("dtype", [None, "float64", "int64", "uint8", "sparse"])
def test_ranks_with_dense_rows_sparse_rows_empty_rows_and_none(dtype: str | None) -> None:
    """Of the rows, which are wholes from 0 to 9, only one rank's are sparse."""
    random = np.random.default_rng(1)
    dense = [Vectors.dense(random.integers(0, 9, 300)) for _ in range(3)]
    sparse = [Vectors.sparse(300, {number: 9.0, 299: 1.0}) for number in range(4)]
    given: list[list[Any]] = [dense, sparse, [], [Vectors.sparse(300, {})] * 2]
    for order in (given, given[::-1]):
        found = kept(order, dtype)
        assert {column.values.dtype for column in found} == {
            torch.int64 if dtype not in (None, "sparse") else torch.int32
        }
        for column_found, part in zip(found, order, strict=True):
            batch = in_batch(column_found)
            assert batch.is_sparse == (dtype == "sparse")
            expected = whole(part) if part else torch.zeros(0, 300)
            assert torch.equal(batch.to_dense(), expected.to(batch.dtype))
    plain = [kept([part, []], dtype) for part in (dense, sparse)]
    assert [isinstance(columns[0], Ragged) for columns in plain] == [dtype == "sparse", True]
    assert [type(columns[0]) is type(columns[1]) for columns in plain] == [True, True]


def test_sparse_tensors_are_of_pairs_alone() -> None:
    """Also those of dense Vectors, of narrow ones, and of those that store zeros."""
    given = [Vectors.dense([0.0, 2.0, 0.0]), Vectors.sparse(3, {0: 0.0, 1: 1.0}), Vectors.dense([1.0, 1.0, 1.0])]
    (found,) = kept([given], "sparse")
    assert found.lengths.tolist() == [2, 2, 6]
    assert torch.equal(in_batch(found).to_dense(), whole(given))


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_kept_as_pairs_and_trained_as_whole_rows(tmp_path: Path, cache: str) -> None:
    def read(form: RowFormat) -> tuple[RowReader, RowCache]:
        (tmp_path / str(form.inputs[0].width)).mkdir()
        disk = LocalDisk(tmp_path / str(form.inputs[0].width), 1 << 30) if cache == "disk" else None
        reading = RowReader(batches(form), form, disk)
        assert reading.account["problem"] is None
        return reading, reading.rows([reading.account]).training

    reading, pairs = read(FORMAT)
    plain, dense = read(WHOLE)
    (kept_pairs,) = pairs.inputs
    assert isinstance(kept_pairs, Ragged)
    stored = [4 * WIDTH if hasattr(row, "array") else 8 * len(row.values) for row in rows()]
    assert kept_pairs.values.nbytes == sum(stored)
    if cache == "disk":
        assert reading.size_bytes < plain.size_bytes / 8
    index = torch.tensor([5, 0, 23])
    assert torch.equal(
        pairs.take(index, torch.device("cpu")).inputs[0], dense.take(index, torch.device("cpu")).inputs[0]
    )
    for each in (reading, plain):
        each.close()


@pytest.mark.parametrize("shuffle", ["local", "global"])
def test_ranks_train_and_exchange_pairs_as_whole_rows(shuffle: str) -> None:
    def caches(form: RowFormat) -> list[RowCache]:
        reading = RowReader(batches(form), form)
        everything = reading.rows([reading.account]).training
        return [everything.pick(part) for part in torch.arange(ROWS).split([11, 13])]

    ended = []
    for form in (FORMAT, WHOLE):
        loops = train(
            lambda: torch.nn.Linear(WIDTH, 1),
            caches(form),
            batch=6,
            epochs=2,
            rows=form,
            conf={"data_shuffle": shuffle},
        )
        ended.append(loops[0].model.values)
    assert torch.equal(*ended)


def test_bad_rows_are_told() -> None:
    def problem(*given: Any) -> str:
        table = {
            "input0": sent(FIELD, list(given)),
            "target0": pa.array([0.0] * len(given)),
            "id": pa.array(range(len(given))),
        }
        with pytest.raises(InputError) as raised:
            read(pa.RecordBatch.from_pydict(table))
        return str(raised.value)

    def read(batch: pa.RecordBatch) -> None:
        reading = RowReader([batch], FORMAT)
        reading.rows([reading.account])

    good = Vectors.sparse(WIDTH, {1: 1.0})
    assert "'x' has arrays of different lengths in 2 rows: 7, 4096" in problem(good, Vectors.sparse(7, {}))
    assert "1 of 2 rows have a null" in problem(good, None)
    assert "1 of 2 rows have a NaN or infinite value" in problem(good, Vectors.sparse(WIDTH, {1: float("nan")}))
    assert "1 of 2 rows have a NaN or infinite value" in problem(good, Vectors.sparse(WIDTH, {1: 1e300}))
