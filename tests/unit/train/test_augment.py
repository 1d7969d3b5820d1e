"""Inputs that are augmented batch by batch; and rows that are read ahead."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl_comm.data.cache import Batch, RowCache, RowReader
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.errors import ModelError
from sparkdl_comm.train.rng import Augmentation
from sparkdl_comm.train.row_assignment import StepRows
from tests.unit.data.test_row_files import PLAIN, batch, disk
from tests.unit.ranks import train

CPU = torch.device("cpu")
ROWS = RowCache((torch.arange(24.0).reshape(12, 2),), (torch.arange(12.0),))


def noise(rows: torch.Tensor) -> torch.Tensor:
    return rows + torch.rand_like(rows) + np.random.rand() + random.random()


def of(*keys: int) -> torch.Tensor:
    seed, rank, *more = keys
    (made,) = Augmentation(noise, seed, rank, CPU)(ROWS.take(torch.arange(3), CPU), *more).inputs
    return made


def test_what_is_drawn_depends_on_seed_rank_epoch_step_and_part_alone() -> None:
    keys = [tuple(int(at == place) for at in range(5)) for place in range(6)]
    first = [of(*each) for each in keys]
    torch.manual_seed(9)
    drawn = torch.rand(1).item(), np.random.rand(), random.random()
    assert all(torch.equal(of(*each), made) for each, made in zip(keys, first, strict=True))
    assert len({made.numpy().tobytes() for made in first}) == len(keys)
    torch.manual_seed(9)
    of(*keys[0])
    assert torch.rand(1).item() == drawn[0], "the model's own numbers stay the same"


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (lambda x: x[:-1], r"returned shape \[2, 2\] for 3 rows"),
        (lambda x: x.tolist(), r"returned list for a tensor of shape \[3, 2\]"),
        (lambda x: x @ x, "augment raised RuntimeError for 3 rows"),
    ],
)
def test_what_cannot_be_used(augment: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Augmentation(augment, 0, 0, CPU)(ROWS.take(torch.arange(3), CPU), 0, 0, 1)


def test_several_columns() -> None:
    two = Batch((torch.zeros(2, 1), torch.ones(2)), (torch.zeros(2),))
    made = Augmentation(lambda a, b: (a + 1, b), 0, 0, CPU)(two, 0, 0, 0)
    assert made.inputs[0].tolist() == [[1], [1]]
    assert made.targets is two.targets
    with pytest.raises(ModelError, match="With 2 feature columns it must return a tuple of as many"):
        Augmentation(lambda a, b: a, 0, 0, CPU)(two, 0, 0, 0)


class Seen(nn.Linear):
    """Keeps what it is trained on and what it is evaluated on."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.inputs: dict[bool, list[torch.Tensor]] = {True: [], False: []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs[self.training].append(x)
        return super().forward(x)


def test_each_epoch_has_others_and_validation_none() -> None:
    """One rank: those of tests are threads, which share their generators."""
    (one,), (again,) = (
        train(Seen, [ROWS], validation=[ROWS], batch=6, epochs=2, augment=noise, accumulation_steps=2) for _ in range(2)
    )
    trained, expected = one.model.module.inputs, again.model.module.inputs
    assert all(torch.equal(a, b) for a, b in zip(trained[True], expected[True], strict=True))
    added = [each - each.floor() for each in trained[True]]
    assert len({each.numpy().tobytes() for each in added}) == len(added) == 4
    assert torch.cat(trained[False]).unique().tolist() == torch.arange(24.0).tolist(), "as they are"


def test_rows_of_the_next_step_are_read_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = RowReader([batch(list(range(6)))], PLAIN, disk(tmp_path))
    rows = reading.rows([reading.account]).training
    readers: list[str] = []
    pick = RowCache.pick

    def told(self: RowCache, index: torch.Tensor) -> RowCache:
        readers.append(threading.current_thread().name.rpartition("_")[0])
        return pick(self, index)

    monkeypatch.setattr(RowCache, "pick", told)
    steps = StepRows(rows, BatchSampler.of([6], 2), 0, 2, CPU)
    for order in (torch.tensor([5, 1, 0, 4, 3, 2]), torch.arange(6)):
        steps.begin_epoch(order)
        labels = [steps.take(step, number).targets[0].item() for step in range(3) for number in range(2)]
        assert labels == order.tolist()
    assert readers == 12 * ["sparkdl-read-ahead"]
    assert steps.take(0, 0).targets[0].item() == 0, "as after a checkpoint, without the step before"
    steps.close()
    assert not any(each.name.startswith("sparkdl-read-ahead") for each in threading.enumerate())
    reading.close()


def test_training_from_the_disk_is_the_same(tmp_path: Path) -> None:
    batches = [[batch(list(range(rank, 40, 2)), 2)] for rank in range(2)]
    memory = [RowReader(each, PLAIN) for each in batches]
    files = [RowReader(each, PLAIN, disk(tmp_path)) for each in batches]
    weights = []
    for readings in (memory, files):
        accounts = [each.account for each in readings]
        parts = [each.rows(accounts).training for each in readings]
        loops = train(lambda: nn.Linear(2, 40), parts, loss=nn.CrossEntropyLoss(), batch=7, accumulation_steps=3)
        weights.append(loops[0].model.module.weight)
    assert torch.equal(*weights)
    for each in files:
        each.close()
