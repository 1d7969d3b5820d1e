"""Rows on an executor's disk: the same tensors as in memory, within a limit, and nothing left afterwards."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.data.batch_collector import Spill
from sparkdl_comm.data.cache import RankRows, RowCache, RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.errors import InputError, PersistenceError
from tests.unit.disk_helpers import left

CPU = torch.device("cpu")
LABEL = Field("labelCol", "y", "int64", ())
PLAIN = RowFormat((Field("featuresCol", "x"),), (LABEL,))
ENOUGH = 1 << 30


def disk(folder: Path, limit: int = ENOUGH) -> LocalDisk:
    return LocalDisk(folder, limit)


def batch(ids: list[int], width: int = 3, **more: Any) -> pa.RecordBatch:
    """Rows that say their ids."""
    columns = {
        "input0": pa.array([[float(each)] * width for each in ids], pa.list_(pa.float64())),
        "target0": pa.array(ids, pa.int64()),
        "id": pa.array(ids, pa.int64()),
        **more,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def tensors(cache: RowCache) -> list[torch.Tensor]:
    """Everything in a cache, in its order."""
    taken = cache.take(torch.arange(cache.rows), CPU)
    inputs = [part for each in taken.inputs for part in (each if isinstance(each, list) else [each])]
    return [*inputs, *taken.targets, *([] if taken.weights is None else [taken.weights])]


def same(one: RankRows, other: RankRows) -> bool:
    pairs = [(one.training, other.training)]
    if one.validation is not None and other.validation is not None:
        pairs.append((one.validation, other.validation))
    for mine, theirs in pairs:
        if mine.rows != theirs.rows:
            return False
        if not mine.rows:
            continue
        for a, b in zip(tensors(mine), tensors(theirs), strict=True):
            if a.dtype != b.dtype or a.numpy().tobytes() != b.numpy().tobytes():
                return False
    return (one.validation is None) == (other.validation is None)


def received(
    counts: list[int], ragged: bool, weighted: bool, held: bool, seed: int
) -> tuple[list[pa.RecordBatch], RowFormat]:
    """Batches of ``counts`` rows, with equal ids now and then, whose rows differ."""
    numbers = np.random.default_rng(seed)
    batches = []
    for count in counts:
        lengths = numbers.integers(0, 4, count) if ragged else [4] * count
        columns: dict[str, pa.Array] = {
            "input0": pa.array([numbers.random(length) for length in lengths], pa.list_(pa.float64())),
            "input1": pa.array([[[1, i]] for i in range(count)], pa.list_(pa.list_(pa.int32()))),
            "target0": pa.array(numbers.integers(0, 5, count), pa.int64()),
            "id": pa.array(numbers.integers(-3, 4, count), pa.int64()),
        }
        if weighted:
            columns["weight"] = pa.array(numbers.random(count) + 0.5, pa.float64())
        if held:
            columns["validation"] = pa.array(numbers.random(count) < 0.5, pa.bool_())
        batches.append(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
    first = Field("featuresCols", "a", collate=list if ragged else None)
    second = Field("featuresCols", "b", "uint8", shape=(2, 1))
    return batches, RowFormat((first, second), (LABEL,), "w" if weighted else None, "v" if held else None)


@given(st.lists(st.integers(0, 7), max_size=5), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9))
def test_the_disk_gives_what_memory_gives(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], ragged: bool, weighted: bool, held: bool, seed: int
) -> None:
    batches, rows = received(counts, ragged, weighted, held, seed)
    folder = tmp_path_factory.mktemp("disk")
    memory, reading = RowReader(batches, rows), RowReader(batches, rows, disk(folder))
    assert reading.account == memory.account
    other = {"rows": 1, "weight": 1.0}
    accounts = [memory.account, {**memory.account, "training": other, "validation": other}]
    found, expected = reading.rows(accounts), memory.rows(accounts)
    assert same(found, expected)
    assert (found.training.file is not None) == any(batch.num_rows for batch in batches)
    reading.close()
    assert left(folder) == []


def test_rows_that_cannot_be_used_leave_nothing(tmp_path: Path) -> None:
    bad = batch([1, 2], input0=pa.array([[1.0] * 3, None], pa.list_(pa.float64())))
    reading = RowReader([batch([3]), bad, batch([4])], PLAIN, disk(tmp_path))
    with pytest.raises(InputError, match="1 of 4 rows have a null"):
        reading.rows([reading.account])
    reading.close()
    assert left(tmp_path) == []

    def fails(value: Any) -> Any:
        raise ValueError(value)

    encoded = RowFormat((Field("featuresCol", "x", decode=fails),), (LABEL,))
    with pytest.raises(InputError, match="raised ValueError"):
        RowReader([batch([1])], encoded, disk(tmp_path))
    assert left(tmp_path) == []


@pytest.mark.parametrize("limit", [1, 500_000, 1_000_000], ids=["at once", "after some", "for the columns"])
def test_over_the_limit_all_goes_on_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """A batch takes 240 kB as it comes, and half of it in the columns."""
    monkeypatch.setattr("sparkdl_comm.data.batch_collector._STEP_BYTES", 0)
    width = 300
    batches = [batch(list(range(start, start + 100)), width) for start in range(0, 300, 100)]
    reading = RowReader(batches, PLAIN, disk(tmp_path, limit))
    assert left(tmp_path) == []
    problem = reading.account["problem"]
    assert f"exceed spark.sparkdl.comm.data.cacheLimit={limit}, " in problem
    assert problem.startswith("rows are kept in memory, not on the executor's disk: ")
    memory = RowReader(batches, PLAIN)
    assert same(reading.rows([reading.account]), memory.rows([memory.account]))
    assert {**reading.account, "problem": None} == memory.account


@pytest.mark.parametrize("after", range(4))
def test_a_disk_that_is_full_is_told_and_all_goes_on_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """It takes so many batches, the last of them in part, and then the file of the columns."""
    add, calls = Spill.add, 0

    def full(self: Spill, batch: pa.RecordBatch) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            if self._sink is not None:
                self._sink.write(b"half a batch")
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, batch)

    def none(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spill, "add", full)
    monkeypatch.setattr(os, "posix_fallocate", none)
    batches = [batch([5, 1]), batch([2]), batch([4, 9])]
    reading = RowReader(batches, PLAIN, disk(tmp_path))
    assert "No space left on device" in reading.account["problem"]
    assert left(tmp_path) == []
    assert reading.rows([reading.account]).training.targets[0].tolist() == [1, 2, 4, 5, 9]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "sparkdl-rows").write_text("a file")
    reading = RowReader([batch([2, 1])], PLAIN, disk(tmp_path))
    assert "sparkdl-rows" in reading.account["problem"]
    assert reading.rows([reading.account]).training.targets[0].tolist() == [1, 2]


def test_batches_that_cannot_be_read_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(self: Spill) -> Iterator[pa.RecordBatch]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Spill, "batches", unreadable)
    with pytest.raises(PersistenceError, match=r"Input/output error.* Set spark.sparkdl.comm.data.cache=memory"):
        RowReader([batch([1])], PLAIN, disk(tmp_path))
    assert left(tmp_path) == []


def test_decode_may_return_another_type_in_a_later_batch(tmp_path: Path) -> None:
    encoded = RowFormat((Field("featuresCol", "x", decode=_decoded),), (LABEL,))
    batches = [batch([n], input0=pa.array([bytes([n])], pa.binary())) for n in range(4)]
    memory, reading = RowReader(batches, encoded), RowReader(batches, encoded, disk(tmp_path))
    assert same(reading.rows([reading.account]), memory.rows([memory.account]))


def _decoded(value: bytes) -> np.ndarray:
    return np.array([value[0]] * 2, [np.uint8, np.float64][value[0] // 2])


def test_the_file_is_arrows(tmp_path: Path) -> None:
    RowReader([batch([5, 1])], PLAIN, disk(tmp_path))
    (path,) = tmp_path.glob("*/*/rows.arrow")
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    table.validate(full=True)
    assert table.to_pylist() == [{"input0": [float(n)] * 3, "target0": n} for n in (1, 5)]


def test_memory_mapped_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were taken do not stay in the process."""
    monkeypatch.setattr("sparkdl_comm.data.arrow_file._MAPPED_BYTES", 4 << 20)
    width = 50_000
    batches = (batch(list(range(start, start + 20)), width) for start in range(0, 200, 20))
    reading = RowReader(batches, PLAIN, disk(tmp_path))
    rows = reading.rows([reading.account]).training
    for index in torch.arange(200).split(10):
        rows.take(index, CPU)
    (file,) = tmp_path.glob("*/*/rows.arrow")
    assert file.stat().st_size > 200 * width * 4
    assert _resident(file) < 8 << 20


def _resident(file: Path) -> int:
    """Bytes of a mapped file that are in this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = 0
    for line in lines:
        if line.endswith(str(file)):
            found += next(int(each.split()[1]) for each in lines if each.startswith("Rss:")) * 1024
    return found


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        reading = RowReader([batch([5, 1])], PLAIN, disk(tmp_path))
        reading.close()
        reading.close()
    del reading
    assert len(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 3
