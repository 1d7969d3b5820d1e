"""Operators by the names that users choose, and what a rank keeps of them over a checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.selection import OPERATORS
from sparkdl_comm.compress.sums import Sparsifier
from sparkdl_comm.conf import DEFAULT_COMPRESSION, CommConf, Compression
from sparkdl_comm.conf.compression import COMPRESSIONS
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import StepInfo
from sparkdl_comm.strategies.hitopk import HierarchicalTopK
from sparkdl_comm.strategies.ps.bucket_transfers import SparsePushes
from tests.unit.compression_helpers import watched

COUNT = 100


def test_every_operator_has_its_own_name_in_the_settings() -> None:
    assert sorted(COMPRESSIONS) == sorted(OPERATORS)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_the_operator_that_is_named_runs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ran = watched(monkeypatch)
    conf = CommConf.from_mapping({}, compression=f"{name}:0.1")
    assert conf.compression.method == Compression(name, 0.1)
    sparsifier = Sparsifier.of(conf.compression.method, conf.compression, rank=0)
    sparsifier.encode(FlatRange(0, COUNT, ()), torch.randn(COUNT), 0.1, 1.0)
    assert ran == {name}


def test_hitopk_selects_exactly_by_default() -> None:
    assert Compression("exact", 0.01) == DEFAULT_COMPRESSION
    strategy = HierarchicalTopK(CommConf.from_mapping({}, strategy="hitopk"))
    assert strategy.compression == DEFAULT_COMPRESSION


def test_random_pushes_go_on_from_a_checkpoint() -> None:
    """All gradients are equal, so that the generator alone decides which of them travel."""
    model, gradients = FlatModel(nn.Linear(COUNT, 1, bias=False)), torch.empty(COUNT)
    conf = CommConf.from_mapping({}, strategy="ps", compression="mstopk:0.1", compression_feedback=False)
    first, second = (SparsePushes(conf.compression, 0, model, gradients) for _ in range(2))

    def pushed(by: SparsePushes) -> list[int]:
        gradients.fill_(1.0)
        by.begin_step(StepInfo())
        by.compress([0])
        by.end_step(True)
        return gradients.nonzero().flatten().tolist()

    pushed(first)
    state = {name: {key: one.clone() for key, one in tensors.items()} for name, tensors in first.state().items()}
    whole = [pushed(first) for _ in range(5)]
    second.load_state(state)
    assert [pushed(second) for _ in range(5)] == whole
