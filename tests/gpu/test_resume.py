"""A fit on a GPU that goes on from a checkpoint ends bit by bit as one that was never interrupted."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl_comm.train.spec import Checkpoints
from tests.gpu.gpu_ranks import Case, Fitted, fit_all
from tests.gpu.test_fits import ADAM, Net, case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SGD = functools.partial(torch.optim.SGD, lr=0.02)


class Dropping(Net):
    """What is dropped depends on the GPU's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.insert(2, nn.Dropout(0.5))


CASES = {
    "nccl": case("nccl", Dropping, ADAM),
    "ring decoupled": case("ring", Dropping, ADAM, loop="decoupled"),
    "fp16": case("nccl", Dropping, precision="fp16"),
    "top-k": case("ring", Dropping, ADAM, compression="topk:0.05"),
    "top-k with momentum": case("ring", Dropping, SGD, compression="topk:0.05", compression_momentum="0.9"),
    "powersgd": case("ring", Dropping, ADAM, compression="powersgd:2"),
    "hitopk": case("hitopk", Dropping, ADAM, compression="mstopk:0.05", topology="hosts:1x2"),
}


def parts(one: Case, directory: Path) -> list[Case]:
    """A fit of six steps, and the same with an interruption after three."""

    def checkpoints(resume: bool) -> Checkpoints:
        return Checkpoints(str(directory), 3, None, keep=2, resume=resume, run="one")

    return [
        one,
        dataclasses.replace(one, epochs=3, checkpoints=checkpoints(resume=False)),
        dataclasses.replace(one, checkpoints=checkpoints(resume=True)),
    ]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Fitted]]]:
    """By the name of the case, what each rank found in each of its fits."""
    places = [tmp_path_factory.mktemp("checkpoints") for _ in CASES]
    cases = [part for one, place in zip(CASES.values(), places, strict=True) for part in parts(one, place)]
    found = fit_all(cases, tmp_path_factory.mktemp("gangs"))
    return {name: found[3 * number : 3 * number + 3] for number, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(fitted: dict[str, list[list[Fitted]]], name: str) -> None:
    for whole, first, second in zip(*fitted[name], strict=True):
        assert not any((whole.error, first.error, second.error)), (whole.error, first.error, second.error)
        assert (whole.begun, first.begun, second.begun) == (0, 0, 3)
        assert not torch.equal(first.values, whole.values)
        assert torch.equal(second.values, whole.values)
