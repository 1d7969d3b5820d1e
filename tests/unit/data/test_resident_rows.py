"""The memory above the disk: of a file's rows, the first ones are in memory too, as many as a bound allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.data.cache import RankRows, RowCache, RowReader
from sparkdl_comm.job.rank_rows import keep_resident, resident_bytes
from tests.unit.data.test_row_files import CPU, PLAIN, batch, disk, received, same, tensors

#: Of features and label, in the file of :func:`on_disk`.
ROW = 3 * 4 + 8


def on_disk(folder: Path, ids: list[int]) -> tuple[RowReader, RankRows]:
    reading = RowReader([batch(ids)], PLAIN, disk(folder))
    return reading, reading.rows([reading.account])


@given(
    st.lists(st.integers(0, 7), max_size=5), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9),
    st.integers(0, 1500),
)  # fmt: skip
@pytest.mark.slow
def test_the_rows_are_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    ragged: bool,
    weighted: bool,
    held: bool,
    seed: int,
    limit: int,
) -> None:
    batches, rows = received(counts, ragged, weighted, held, seed)
    reading = RowReader(batches, rows, disk(tmp_path_factory.mktemp("held")))
    other = {"rows": 1, "weight": 1.0}
    found = reading.rows([reading.account, {**reading.account, "training": other, "validation": other}])
    kept = keep_resident(found, limit)
    assert same(kept, found)
    parts = [part for part in (kept.training, kept.validation) if part is not None]
    assert sum(map(resident_bytes, parts)) <= limit
    for part in parts:
        index = torch.from_numpy(np.random.default_rng(seed).permutation(part.rows))
        if len(index):
            assert all(map(torch.equal, taken(part, index), taken(part.with_columns(part.columns), index)))
    reading.close()


def taken(rows: RowCache, index: torch.Tensor) -> list[torch.Tensor]:
    return tensors(rows.pick(index))


@pytest.mark.parametrize(
    ("limit", "held"), [(0, 0), (ROW - 1, 0), (ROW, 1), (3 * ROW - 1, 2), (5 * ROW, 5), (1 << 40, 5)]
)
def test_what_is_held_is_not_read_again(tmp_path: Path, limit: int, held: int) -> None:
    """The file changes; only rows that are read from it do."""
    reading, rows = on_disk(tmp_path, [1, 2, 3, 4, 5])
    kept = keep_resident(rows, limit).training
    assert resident_bytes(kept) == held * ROW
    assert kept.needs_read_ahead == (held < 5)
    (path,) = tmp_path.glob("*/*/rows.arrow")
    path.write_bytes(path.read_bytes().replace(np.float32([4.0] * 3).tobytes(), np.float32([7.0] * 3).tobytes()))
    with open(path, "r+b") as file:  # in place: the file is mapped
        file.write(path.read_bytes())
    features = kept.take(torch.tensor([3, 0, 4]), CPU).inputs[0]
    assert features.tolist() == [[4.0 if held > 3 else 7.0] * 3, [1.0] * 3, [5.0] * 3]
    reading.close()


def test_rows_for_training_come_first(tmp_path: Path) -> None:
    batches, form = received([6], False, False, True, 3)
    reading = RowReader(batches, form, disk(tmp_path))
    rows = reading.rows([reading.account])
    size = resident_bytes(keep_resident(rows, 1 << 40).training)
    kept = keep_resident(rows, size + 1)
    assert kept.validation is not None
    assert (kept.training.resident is not None, kept.validation.resident) == (True, None)
    everything = keep_resident(rows, 1 << 40)
    assert everything.validation is not None
    assert not everything.training.needs_read_ahead
    assert not everything.validation.needs_read_ahead
    reading.close()


def test_rows_in_memory_stay_as_they_are() -> None:
    reading = RowReader([batch([1, 2])], PLAIN)
    rows = reading.rows([reading.account])
    assert keep_resident(rows, 1 << 40) == rows
