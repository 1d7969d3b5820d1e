"""Caches that users name: each part is used whole or not at all, and only for the same rows."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyspark.ml.linalg import Vectors

from sparkdl_comm.cli import main
from sparkdl_comm.data import named_cache
from sparkdl_comm.data.cache import RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.data.named_cache import CachedRows, NamedCache
from sparkdl_comm.errors import ConfError, PersistenceError
from sparkdl_comm.job.cached_rows import digest
from tests.unit.data.test_row_files import CPU, LABEL, PLAIN, batch, disk, left, received, same
from tests.unit.data.test_sparse_rows import batches as vectors

CACHE = NamedCache("clicks", {"rows": 1, "ranks": 3}, is_read=True)


def keep(space: LocalDisk, ids: list[int], rank: int = 0, name: str = "clicks") -> RowReader:
    """Keep rows as a fit does whose other ranks have none. The reader is not closed."""
    return keep_batches(space, [batch(ids, 100)], PLAIN, rank, replace(CACHE, name=name))


def keep_batches(
    space: LocalDisk, batches: list[pa.RecordBatch], form: RowFormat, rank: int, cache: NamedCache = CACHE
) -> RowReader:
    reading = RowReader(batches, form, space)
    accounts = [RowReader([], form).account] * rank + [reading.account]
    counted = replace(cache, facts={**cache.facts, "rows": sum(each.num_rows for each in batches)})
    assert named_cache.keep(reading, counted, space, form, rank, accounts) == ""
    return reading


def load(space: LocalDisk, rank: int = 0, form: RowFormat = PLAIN, **facts: Any) -> CachedRows | None:
    cache = replace(CACHE, facts={**CACHE.facts, **facts})
    cache.check(space, form)
    return named_cache.load(space, cache, rank, form)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("counts", [[3, 5], []], ids=["some", "none"])
def test_the_next_fit_has_the_same_rows(tmp_path: Path, ragged: bool, counts: list[int]) -> None:
    batches, rows = received(counts, ragged, True, True, 3)
    kept = keep_batches(disk(tmp_path), batches, rows, 7)
    kept.close()
    reading = load(disk(tmp_path), 7, rows, rows=sum(counts))
    assert reading is not None
    assert reading.account == kept.account
    memory = RowReader(batches, rows)
    other = {**memory.account, **{name: {"rows": 1, "weight": 1.0} for name in ("training", "validation")}}
    accounts = [memory.account, other]
    assert same(reading.rows(accounts), memory.rows(accounts))
    reading.close()
    assert left(tmp_path) == ["clicks-7"], "for one more"


@pytest.mark.parametrize("dtype", [None, "sparse"])
def test_vectors_are_kept_in_the_form_that_a_rank_has(tmp_path: Path, dtype: str | None) -> None:
    """Of three ranks, one has dense rows, one sparse ones, and one none."""
    dense, sparse = [Vectors.dense([2.0] * 300)] * 2, [Vectors.sparse(300, {7: 1.0})] * 3
    form = RowFormat((Field("featuresCol", "x", dtype, width=0),), (Field("labelCol", "y", "float32", ()),))
    parts = [vectors(form, given, 10 * rank) if given else [] for rank, given in enumerate((dense, sparse, []))]
    fresh = [keep_batches(disk(tmp_path / str(rank)), part, form, rank) for rank, part in enumerate(parts)]
    cached = [load(disk(tmp_path / str(rank)), rank, form, rows=rows) for rank, rows in enumerate((2, 3, 0))]
    for ranks in ([0, 1, 2], [0, 2], [1, 2]):
        accounts = [fresh[rank].account for rank in ranks]
        for rank in ranks:
            found = cached[rank]
            assert found is not None
            expected, again = fresh[rank].rows(accounts).training, found.rows(accounts).training
            assert type(again.inputs[0]) is type(expected.inputs[0])
            (one,), (other,) = (rows.take(torch.arange(rows.rows), CPU).inputs for rows in (expected, again))
            assert one.shape == other.shape == (len((dense, sparse, [])[rank]), 300)
            assert torch.equal(one.to_dense(), other.to_dense())
    for reading in (*fresh, *cached):
        assert reading is not None
        reading.close()


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_tasks_of_a_host_take_different_parts(here: set[int], ranks: set[int]) -> None:
    """Its own if it is there; and as many as there are parts for."""
    space: Any = SimpleNamespace(parts=lambda: {"clicks": {rank: Path() for rank in sorted(ranks)}})
    local = sorted(here)
    chosen = [named_cache.choose_part(space, CACHE, partition, local) for partition in local]
    found = [rank for rank in chosen if rank is not None]
    assert len(found) == len(set(found)) == min(len(local), len(ranks))
    assert set(found) <= ranks
    assert all(rank == partition for partition, rank in zip(local, chosen, strict=True) if partition in ranks)


def test_nobody_removes_what_is_used(tmp_path: Path) -> None:
    space = disk(tmp_path)
    for rank in (0, 2):
        keep(space, [rank], rank).close()
    used = [load(space, rank) for rank in (0, 0, 2)]
    mine = disk(tmp_path, 1).create_folder()
    with pytest.raises(OSError, match="in use by other ranks"):
        mine.reserve(1)
    assert left(tmp_path) == sorted(["clicks-0", "clicks-2", mine.path.name])
    for each in used:
        assert each is not None
        each.close()
    mine.reserve(1)
    assert left(tmp_path) == [mine.path.name]


def test_parts_of_other_rows_have_another_set_id(tmp_path: Path) -> None:
    """The number of rows and the columns are equal. Only the contents differ."""
    ids = []
    for number, rows in enumerate(([1], [1], [2])):
        space = disk(tmp_path / str(number))
        keep(space, rows).close()
        found = load(space)
        assert found is not None
        found.close()
        ids.append(found.set_id)
    assert ids[0] == ids[1] != ids[2]


def test_a_part_is_replaced_unless_it_is_in_use(tmp_path: Path) -> None:
    space = disk(tmp_path)
    for each in (1, 2):
        keep(space, [each]).close()
    used = load(space)
    assert used is not None
    assert used.rows([used.account]).training.targets[0].tolist() == [2]
    keep(space, [2]).close()  # the same rows: nothing is lost
    reading = RowReader([batch([3])], PLAIN, space)
    unkept = named_cache.keep(reading, CACHE, space, PLAIN, 0, [reading.account])
    assert unkept == "another fit is using the cache"
    for each in (reading, used):
        each.close()
    assert left(tmp_path) == ["clicks-0"]


def test_rows_that_are_not_kept(tmp_path: Path) -> None:
    """Some more than were counted, or in memory for lack of room."""
    for space, rows, why in (
        (disk(tmp_path), [1, 2], "the DataFrame had 1 rows at first, and 2 rows when ranks read it"),
        (disk(tmp_path, 1), [1], "rows are kept in memory"),
    ):
        reading = RowReader([batch(rows)], PLAIN, space)
        assert why in named_cache.keep(reading, CACHE, space, PLAIN, 0, [reading.account])
        reading.close()
    assert left(tmp_path) == []
    assert named_cache.choose_part(disk(tmp_path / "nothing"), CACHE, 0, [0]) is None


def test_only_the_user_can_read_what_is_kept(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keep(disk(tmp_path), [1]).close()
    finally:
        os.umask(before)
    root = tmp_path / "sparkdl-rows"
    assert {path.stat().st_mode & 0o777 for path in (root, root / "clicks-0")} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in (root / "clicks-0").iterdir()} == {0o600}
    root.chmod(0o755)
    with pytest.raises(PersistenceError, match=r"not a directory that only user .*cacheDir to another directory"):
        load(disk(tmp_path))


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
    (path / "seal.json").write_text(json.dumps({"fingerprint": CACHE.fingerprint(PLAIN)}))


@pytest.mark.parametrize("damage", [_flip, _cut, _unseal, _garble])
def test_what_is_damaged_is_not_used(tmp_path: Path, damage: Any) -> None:
    space = disk(tmp_path)
    for rank in (0, 1):
        keep(space, [rank, 5], rank).close()
    damage(tmp_path / "sparkdl-rows" / "clicks-0")
    assert load(space, 0, rows=2) is None
    intact = load(space, 1, rows=2)
    assert intact is not None
    intact.close()


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.for_model(torch.nn.Embedding(2, 2)),
        RowFormat((Field("featuresCol", "x", "int64"),), (LABEL,)),
        RowFormat((Field("featuresCol", "x2"),), (LABEL,)),
        RowFormat((Field("featuresCol", "x", shape=(3, 1)),), (LABEL,)),
        RowFormat((Field("featuresCol", "x", collate=list),), (LABEL,)),
        RowFormat(PLAIN.inputs, (Field("labelCol", "y", "int64", (), limits=(0.0, 1.0)),)),
        RowFormat(PLAIN.inputs, PLAIN.targets, weight="w"),
    ],
    ids=["looked up", "type", "name", "shape", "ragged", "limits", "weights"],
)
def test_other_columns_are_refused(tmp_path: Path, other: RowFormat) -> None:
    keep(disk(tmp_path), [1]).close()
    with pytest.raises(
        ConfError, match=r"cacheName=clicks: .* has other rows. It differs in columns \(.*, in the cache "
    ):
        load(disk(tmp_path), form=other)


def test_other_facts_are_refused_by_name(tmp_path: Path) -> None:
    keep(disk(tmp_path), [1]).close()
    with pytest.raises(ConfError) as refused:
        load(disk(tmp_path), ranks=2, decode="a1")
    assert "differs in ranks (2, in the cache 3); decode (a1, in the cache None). Set another name" in str(
        refused.value
    )
    assert f"sparkdl-comm cache --dir {tmp_path} remove clicks" in str(refused.value)
    reading = RowReader([batch([1])], PLAIN, disk(tmp_path))
    other = replace(CACHE, facts={**CACHE.facts, "ranks": 1})
    with pytest.raises(ConfError, match="ranks"):  # of a fit at the same time
        named_cache.keep(reading, other, disk(tmp_path), PLAIN, 0, [reading.account])
    reading.close()


def test_the_command_lists_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cache", "--dir", str(tmp_path)]
    assert main([*words, "list"]) == 0
    assert capsys.readouterr().out == f"0 caches in {tmp_path / 'sparkdl-rows'}\n"
    used = keep(disk(tmp_path), [1], rank=2)
    keep(disk(tmp_path), [1]).close()
    keep(disk(tmp_path), [1], name="a-1").close()
    assert main([*words, "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] + line.partition("ranks")[2] for line in lines[1:]] == ["a-1 0", "clicks 0, 2"]
    for name, words_of_error in (("click", "did you mean clicks?"), ("clicks", "fits use the rows of ranks [2]")):
        assert main([*words, "remove", name]) == 1
        assert words_of_error in capsys.readouterr().err
    used.close()
    assert main([*words, "remove", "clicks"]) == 0
    assert left(tmp_path) == ["a-1-0"]


def _one(value: bytes) -> np.ndarray:
    return np.frombuffer(value, np.uint8)


def _changed(code: str) -> Any:
    """A function of a module that executors import, after the module was edited."""
    scope: dict[str, Any] = {"__name__": __name__}
    exec(f"def _one(value): return {code}", scope)  # noqa: S102
    return scope["_one"]


def test_decode_is_the_same_if_its_code_is() -> None:
    assert digest(_one) == digest(_one)
    functions = [_one, _changed("1"), _changed("2"), _changed("value"), functools.partial(_one), lambda value: value]
    functions += [functools.partial(int, base=base) for base in (2, 3)]
    assert len({digest(each) for each in functions}) == len(functions)


@pytest.mark.slow
def test_a_digest_is_the_same_in_another_process() -> None:
    """The function is pickled as a whole. File, lines and the order of its sets differ."""
    program = r"""
import os
from sparkdl_comm.job.cached_rows import digest
seed = os.environ["PYTHONHASHSEED"]
scope = {"__name__": "__main__"}
code = "def decode(value):\n    return [float(each in {'a', 'b', 'c', 'd'}) for each in value]"
exec(compile("\n" * int(seed) + code, "cell" + seed, "exec"), scope)
print(digest(scope["decode"]))
"""
    words = [sys.executable, "-c", program]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    first, second = (subprocess.check_output(words, env=each) for each in environments)  # noqa: S603
    assert first == second
