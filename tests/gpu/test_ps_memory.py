"""Strategy ps on a GPU, but for its JVM: the memory that both map, pinned, and copies to and from it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.optim.parallel import SingleRank
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.parameter_space import LayerBuckets
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.ps.bucket_transfers import BatchTrace, ParameterPulls
from sparkdl_comm.strategies.ps.memory import ParameterMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SGD = Optimization(functools.partial(torch.optim.SGD, lr=0.5))


def model() -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 50)).cuda())


def layout(count: int) -> dict[str, Any]:
    """As the JVM gives it to the only rank: parameters, gradients and master weights, one behind the other."""
    return {
        "segment_bytes": 4 * 3 * count + 8,
        "parameters_offsets": [0],
        "gradients_offset": 4 * count,
        "shard": [{"start": 0, "count": count, "master_offset": 8 * count}],
        "summed_offset": 12 * count,
        "summed_version": 1 << 20,
    }


def test_the_memory_is_pinned_while_it_is_used() -> None:
    found = model()
    memory = ParameterMemory(layout(found.count), found)
    assert not memory.values.is_pinned()
    memory.bind()
    assert memory.values.is_pinned()
    assert memory.gradients.is_pinned()
    assert found.values.is_cuda
    assert found.gradients.is_cuda
    assert torch.equal(memory.values, found.values.cpu())
    memory.close()
    assert not memory.values.is_pinned()


def test_a_step_on_the_host_is_that_of_plain_torch_on_the_gpu() -> None:
    found, plain = model(), model().module
    memory = ParameterMemory(layout(found.count), found)
    memory.bind()
    shard = memory.make_shard(OptimizerMaker(found, SGD), SingleRank())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    rows = torch.randn(8, 30, device="cuda")
    for _ in range(3):
        for module in (found.module, plain):
            module.zero_grad()
            module(rows).square().mean().backward()
        memory.gradients.copy_(found.gradients)
        shard.step()
        [(_, exact)] = shard.owned
        memory.values.copy_(exact)  # what publishing and pulling do
        found.values.copy_(memory.values, non_blocking=True)
        optimizer.step()
    expected = nn.utils.parameters_to_vector(plain.parameters())
    assert (found.values - expected).norm() / expected.norm() <= 1e-6
    memory.close()


class Arriving:
    """The executor's part: puts parameters into the memory when they are asked for."""

    def __init__(self, memory: ParameterMemory, stretches: list[slice]) -> None:
        self.memory, self.stretches, self.pulled = memory, stretches, 0

    def prefetch(self, version: int) -> None:
        pass

    def pull(self, version: int, bucket: int) -> dict[str, Any]:
        for stretch in self.stretches[self.pulled : bucket + 1]:
            self.memory.values[stretch] = float(version)
        self.pulled = bucket + 1
        return {"bytes": 4 * self.memory.values.numel(), "batches": []}


def test_each_layer_is_on_the_gpu_when_forward_uses_it() -> None:
    found = model()
    memory = ParameterMemory(layout(found.count), found)
    memory.bind()
    buckets = LayerBuckets([[1, 1], [2, 2]])
    session: Any = Arriving(memory, [found.stretch(layers) for layers in buckets.layers])
    pulls = ParameterPulls(session, found, memory, buckets, on_gpu=True, watch=Stopwatch(), trace=BatchTrace(None))
    for version in (1, 2):
        session.pulled = 0
        pulls.begin_version(version, can_prefetch_next=False)
        pulls.begin_step(profiler=None)
        with pulls.forward():
            output = found.module(torch.ones(2, 30, device="cuda"))
        # Of layers whose weights and biases are all `version`.
        hidden = torch.tanh(torch.tensor(31.0 * version))
        assert torch.allclose(output.cpu(), (40 * hidden + 1) * version)
        assert session.pulled == 2
    memory.close()
