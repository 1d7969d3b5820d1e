"""Rows that a fit leaves for the next: claimed once each, whole or not at all; and which data count as the same."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl_comm.data import kept_rows
from sparkdl_comm.data.cache import RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.job.row_sets import RowSetRecord, RowSets, Source, _digest

from .test_row_files import ENOUGH, LABEL, PLAIN, batch, disk, left, received, same


def leave(space: LocalDisk, batches: list[pa.RecordBatch], rows: RowFormat = PLAIN, rank: int = 0) -> RowReader:
    """What a fit does."""
    reading = RowReader(batches, rows, space)
    assert kept_rows.seal(reading, rows)
    assert reading.folder is not None
    reading.folder.keep(f"set-{rank}")
    reading.close()
    return reading


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("counts", [[3, 5], []], ids=["some", "none"])
def test_the_next_fit_has_the_same_rows(tmp_path: Path, ragged: bool, counts: list[int]) -> None:
    batches, rows = received(counts, ragged, True, True, 3)
    left_ = leave(disk(tmp_path), batches, rows, 7)
    claimed = kept_rows.claim(disk(tmp_path), "set", "gang", rows)
    assert claimed is not None
    rank, reading = claimed
    assert rank == 7
    assert reading.account == left_.account
    memory = RowReader(batches, rows)
    other = {**memory.account, **{name: {"rows": 1, "weight": 1.0} for name in ("training", "validation")}}
    accounts = [memory.account, other]
    assert same(reading.rows(accounts), memory.rows(accounts))
    reading.close()
    assert left(tmp_path) == ["set-7"], "for one more"


def test_each_task_of_a_gang_claims_another_and_gangs_share(tmp_path: Path) -> None:
    space = disk(tmp_path)
    for rank in (0, 2):
        leave(space, [batch([rank])], rank=rank)
    found = [kept_rows.claim(space, "set", "one", PLAIN) for _ in range(3)]
    assert [each and each[0] for each in found] == [0, 2, None]
    assert kept_rows.claim(space, "other", "one", PLAIN) is None
    second = kept_rows.claim(space, "set", "two", PLAIN)
    assert second is not None
    mine = disk(tmp_path, 1).create_folder()
    with pytest.raises(OSError, match="in use by other ranks"):
        mine.reserve(1)
    assert left(tmp_path) == sorted(["set-0", "set-2", mine.path.name]), "nobody removes what is used"
    for each in (*found, second):
        if each is not None:
            each[1].close()
    again = kept_rows.claim(space, "set", "one", PLAIN)
    assert again is not None
    assert again[0] == 0, "what was claimed is free again"
    again[1].close()
    mine.reserve(1)
    assert left(tmp_path) == [mine.path.name]


def _flip(path: Path) -> None:
    data = bytearray((path / "rows.arrow").read_bytes())
    data[-500] ^= 1
    (path / "rows.arrow").write_bytes(data)


def _cut(path: Path) -> None:
    data = (path / "rows.arrow").read_bytes()
    (path / "rows.arrow").write_bytes(data[:-100])


def _unseal(path: Path) -> None:
    (path / "seal.json").unlink()


def _garble(path: Path) -> None:
    (path / "seal.json").write_text(json.dumps({"format": kept_rows.describe_format(PLAIN)}))


@pytest.mark.parametrize("damage", [_flip, _cut, _unseal, _garble])
def test_what_is_damaged_is_not_claimed(tmp_path: Path, damage: Any) -> None:
    space = disk(tmp_path)
    for rank in (0, 1):
        leave(space, [batch([rank, 5], 100)], rank=rank)
    damage(tmp_path / "sparkdl-rows" / "set-0")
    claimed = kept_rows.claim(space, "set", "gang", PLAIN)
    assert claimed is not None
    assert claimed[0] == 1
    assert kept_rows.claim(space, "set", "gang", PLAIN) is None
    claimed[1].close()


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.for_model(torch.nn.Embedding(2, 2)),
        RowFormat((Field("featuresCol", "x", "int64"),), (LABEL,)),
        RowFormat((Field("featuresCol", "x", shape=(3, 1)),), (LABEL,)),
        RowFormat((Field("featuresCol", "x", collate=list),), (LABEL,)),
        RowFormat(PLAIN.inputs, (Field("labelCol", "y", "int64", (), limits=(0.0, 1.0)),)),
        RowFormat(PLAIN.inputs, PLAIN.targets, weight="w"),
        RowFormat(PLAIN.inputs, PLAIN.targets, validation="v"),
    ],
    ids=["looked up", "type", "shape", "ragged", "limits", "weights", "validation"],
)
def test_rows_of_another_format_are_not_claimed(tmp_path: Path, other: RowFormat) -> None:
    leave(disk(tmp_path), [batch([1])])
    assert kept_rows.claim(disk(tmp_path), "set", "gang", other) is None


def test_rows_in_memory_are_not_sealed(tmp_path: Path) -> None:
    assert not kept_rows.seal(RowReader([batch([1])], PLAIN), PLAIN)
    assert not kept_rows.seal(RowReader([batch([1])], PLAIN, disk(tmp_path, 1)), PLAIN)
    assert kept_rows.claim(disk(tmp_path / "nothing"), "set", "gang", PLAIN) is None
    assert ENOUGH > 1


class Plan:
    """Stands for Spark's, as far as row sets use it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sameResult(self, other: Plan) -> bool:
        return self.name == other.name


def source(**changed: Any) -> Source:
    given = Source("app", Plan("plan"), ((("file:/a", 5, 100),),), "settings", "format", 3)
    return dataclasses.replace(given, **changed)


def test_a_row_set_is_found_for_the_same_data_alone() -> None:
    sets = RowSets()
    first, second = RowSetRecord("first", source()), RowSetRecord("second", source())
    sets.add(first)
    assert sets.find(source()) is first
    for changed in (
        {"application": "another"},
        {"plan": Plan("another")},
        {"files": ((("file:/a", 5, 101),),)},
        {"files": ((("file:/a", 6, 100),),)},
        {"files": ((("file:/b", 5, 100),),)},
        {"settings": "others"},
        {"format": "another"},
        {"world": 2},
    ):
        assert sets.find(source(**changed)) is None, changed
    sets.add(second)
    assert sets.find(source()) is second, "the newest"
    sets.forget(second)
    sets.forget(second)
    assert sets.find(source()) is first
    sets.add(RowSetRecord("third", source(application="next")))
    assert sets.find(source()) is None, "of an application that has ended"


def test_row_sets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl_comm.job.row_sets._MAX_SETS", 2)
    sets = RowSets()
    for world in (1, 2, 3):
        sets.add(RowSetRecord(str(world), source(world=world)))
    found = [sets.find(source(world=world)) for world in (1, 2, 3)]
    assert [each and each.name for each in found] == [None, "2", "3"]


def _one(value: bytes) -> np.ndarray:
    return np.frombuffer(value, np.uint8)


def _changed(code: str) -> Any:
    """A function of a module that executors import, after the module was edited."""
    scope: dict[str, Any] = {"__name__": __name__}
    exec(f"def _one(value): return {code}", scope)  # noqa: S102
    return scope["_one"]


def test_decode_is_the_same_if_its_code_is() -> None:
    assert _digest(_one) == _digest(_one)
    functions = [_one, _changed("1"), _changed("2"), _changed("value"), functools.partial(_one), lambda value: value]
    functions += [functools.partial(int, base=base) for base in (2, 3)]
    assert len({_digest(each) for each in functions}) == len(functions)
