"""Sparse Vectors on their way to a model: pairs until a batch is made of them, in memory, on the disk, between ranks."""

from __future__ import annotations

import re
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
FIELD = Field("featuresCol", "x", width=WIDTH)
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


def batches(form: RowFormat, vectors_given: list[Any] | None = None) -> list[pa.RecordBatch]:
    given = column(rows() if vectors_given is None else vectors_given)
    count = len(given)
    if form.inputs[0].width is None:
        given = vectors.to_lists(given).cast(pa.large_list(pa.float32()))
    table = {"input0": given, "target0": pa.array(np.arange(count, dtype=np.float32)), "id": pa.array(range(count))}
    batch = pa.RecordBatch.from_pydict(table)
    return [batch.slice(start, 10) for start in range(0, count, 10)]


@pytest.mark.parametrize("dtype", [None, "float64", "int64", "sparse"])
def test_a_batch_is_what_the_rows_are(dtype: str | None) -> None:
    given = rows() if dtype != "int64" else [Vectors.sparse(WIDTH, {1: 3.0, 7: 2.0**40}), Vectors.dense([1.0] * WIDTH)]
    expected = torch.tensor(np.stack([row.toArray() for row in given]))
    field = replace(FIELD, dtype=dtype)
    read = Ragged.of(field, *arrow.to_ragged(vectors.to_pairs(field, column(given))))
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
    plain = replace(FIELD, width=None)
    assert isinstance(arrow.read(plain, column(rows())), Ragged)
    assert torch.equal(arrow.read(plain, column(rows())).collate(), whole(rows()))
    full = [Vectors.sparse(3, {0: 1.0, 1: 1.0}), Vectors.dense(1.0, 2.0, 3.0)]
    assert isinstance(arrow.read(plain, column(full)), np.ndarray)
    assert arrow.read(replace(plain, dtype="sparse"), column(full)).collate().is_sparse


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
    assert kept_pairs.values.nbytes == 8 * int((whole(rows()) != 0).sum())
    if cache == "disk":
        assert reading.size_bytes < plain.size_bytes / 50
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
            "input0": column(list(given)),
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
    assert re.search(
        "1 of 2 rows of a batch are Vectors of 7 elements, others of 4096", problem(good, Vectors.sparse(7, {}))
    )
    assert "1 of 2 rows have a null" in problem(good, None)
    assert "1 of 2 rows have a NaN or infinite value" in problem(good, Vectors.sparse(WIDTH, {1: float("nan")}))
    assert "1 of 2 rows have a NaN or infinite value" in problem(good, Vectors.sparse(WIDTH, {1: 1e300}))
