"""Whole fits by two ranks on a GPU, by every strategy that needs no JVM: what one process on the CPU finds."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf.compression import COMPRESSIONS
from sparkdl_comm.optim import LAMB, LARS
from sparkdl_comm.topology import Topology
from tests.gpu.gpu_ranks import Case, Fitted, alone, fit_all
from tests.unit.ranks import Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WORLD, ROWS, PARTS = 2, 96, (43, 53)
ALL_REDUCES = [name for name, one in ALGORITHMS.items() if not one.why_ineligible(Topology.parse(f"star:{WORLD}"))]


class Net(nn.Sequential):
    def __init__(self, norm: type[nn.Module] = nn.Identity) -> None:
        layers: list[nn.Module] = [nn.Linear(6, 200), norm(200) if norm is not nn.Identity else norm()]
        super().__init__(*layers, nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1))


def table() -> list[Rows]:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(ROWS, 6, generator=random)
    return Rows(features, features.sum(1) + torch.randn(ROWS, generator=random)).cut(*PARTS)


def case(strategy: str, make: Any = Net, optimizer: Any = None, precision: str = "fp32", **settings: Any) -> Case:
    optimizer = optimizer or functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9)
    optimization = {"optimizer": optimizer, "precision": precision}
    if norm := settings.pop("max_grad_norm", None):
        optimization["max_grad_norm"] = norm
    # Some buckets, of which the largest has a layer alone.
    return Case({"strategy": strategy, "bucket": "16KiB", **settings}, make, optimization, table())


ADAM = functools.partial(torch.optim.Adam, lr=0.01)
#: The same mathematics in another order: what one process finds, but for rounding.
EXACT = {
    "gloo": case("gloo"),
    "nccl": case("nccl"),
    "nccl, Adam": case("nccl", optimizer=ADAM),
    **{name: case(name) for name in ALL_REDUCES},
    "cheapest": case("cheapest"),
    "ring decoupled": case("ring", loop="decoupled"),
    "lp decoupled, Adam": case("lp", loop="decoupled", optimizer=ADAM),
    "mst decoupled": case("mst", loop="decoupled"),
    "lp at the root": case("lp", loop="root-overlap"),
    "ring, clipped": case("ring", max_grad_norm=0.5),
    "ring decoupled, clipped": case("ring", loop="decoupled", max_grad_norm=0.5),
    "nccl, LARS": case("nccl", optimizer=functools.partial(LARS, lr=0.5, momentum=0.9)),
    "ring decoupled, LARS": case("ring", loop="decoupled", optimizer=functools.partial(LARS, lr=0.5, momentum=0.9)),
    "ring decoupled, LAMB": case("ring", loop="decoupled", optimizer=functools.partial(LAMB, lr=0.01)),
    "nccl, batch norm": case("nccl", functools.partial(Net, nn.SyncBatchNorm)),
    "gloo, batch norm": case("gloo", functools.partial(Net, nn.SyncBatchNorm)),
    "ring, all elements": case("ring", compression="topk:1"),
}
#: Other mathematics, on purpose: the loss falls, and all ranks end alike.
INEXACT = {
    **{f"ring, {name}": case("ring", compression=f"{name}:0.05") for name in COMPRESSIONS},
    "ring, topk, bf16": case("ring", compression="topk:0.05", compression_values="bf16"),
    "ring, topk, momentum": case(
        "ring",
        compression="topk:0.05",
        compression_momentum="0.9",
        optimizer=functools.partial(torch.optim.SGD, lr=0.02),
    ),
    "ring, powersgd": case("ring", compression="powersgd:2"),
    "hitopk": case("hitopk", compression="mstopk:0.05", topology="hosts:1x2"),
    "nccl, autocast bf16": case("nccl", precision="bf16"),
    "nccl, autocast fp16": case("nccl", precision="fp16"),
    "ring decoupled, autocast fp16": case("ring", precision="fp16", loop="decoupled"),
}
CASES = EXACT | INEXACT


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Fitted]]:
    """By the name of the case, what each rank found."""
    return dict(zip(CASES, fit_all(list(CASES.values()), tmp_path_factory.mktemp("gangs")), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_end_with_the_same_bits(fitted: dict[str, list[Fitted]], name: str) -> None:
    first, *others = fitted[name]
    assert not first.error, first.error
    for other in others:
        assert not other.error, other.error
        assert torch.equal(other.values, first.values)


@pytest.mark.parametrize("name", EXACT)
def test_same_mathematics_as_one_process(fitted: dict[str, list[Fitted]], name: str) -> None:
    found, expected = fitted[name][0], alone(_on_cpu(EXACT[name]))
    assert not found.error, found.error
    assert (found.values - expected).norm() / expected.norm() <= 1e-4
    assert found.losses[-1] < found.losses[0]


@pytest.mark.parametrize("name", INEXACT)
def test_the_loss_falls(fitted: dict[str, list[Fitted]], name: str) -> None:
    found = fitted[name][0]
    assert not found.error, found.error
    assert found.skipped < INEXACT[name].epochs
    assert found.losses[-1] < found.losses[0]


def _on_cpu(one: Case) -> Case:
    """SyncBatchNorm of torch is for GPUs; in one process BatchNorm does the same."""
    if one.make is Net:
        return one
    return Case(one.settings, functools.partial(Net, nn.BatchNorm1d), one.optimization, one.parts, one.epochs)
