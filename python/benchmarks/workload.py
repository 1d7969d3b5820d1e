"""Workload of benchmarks that train: models, rows, the expected weights, and training by DDP.

A model is a number of hidden units, a profile, or "lenet5". A number stands for a perceptron of 784 inputs and one output.
It has few rows per step, so communication takes nearly all of an iteration. A profile stands for an emulated network,
whose layers wait (see lab.emulated). The weights after the last step are compared with those of one process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from lab.emulated import EmulatedNetwork
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import NamedStrategy
from sparkdl_comm.networks import LeNet5, parameter_count
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.topology import Topology

Model = int | Profile | Literal["lenet5"]

INPUTS = 784
LEARNING_RATE = 0.05
#: Largest difference to the expected weights, as a share of the largest change in training.
TOLERANCE = 1e-3
_SEED = 11


def nbytes(model: Model) -> int:
    """Return the bytes of a model's float32 parameters."""
    if isinstance(model, Profile):
        return 4 * model.parameters
    if isinstance(model, str):
        return 4 * parameter_count(network(model))
    return 4 * (INPUTS * model + model + model + 1)


def hidden_of(wanted: int) -> int:
    """Return the hidden units with which the parameters have about the wanted bytes."""
    return max(1, round((wanted / 4 - 1) / (INPUTS + 2)))


def network(model: Model, scale: float = 1.0) -> nn.Module:
    """Return the module of a model, with the same weights in every process.

    :param scale: multiplies the waits of an emulated network.
    """
    if isinstance(model, Profile):
        return EmulatedNetwork(model, outputs=1, scale=scale)
    if isinstance(model, int):
        return perceptron(model)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return LeNet5()


def perceptron(hidden: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(_SEED)
    model = nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    for parameter in model.parameters():
        parameter.data.uniform_(-0.04, 0.04, generator=generator)
    return model


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch of all ranks, float32 [count, 784], and its targets [count]. All steps have the same batch."""
    random = np.random.default_rng(_SEED)
    return random.random((count, INPUTS), np.float32), random.random(count, np.float32)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of targets [rows] and a row's output, the mean of outputs [rows, …]."""
    return nn.functional.mse_loss(output.reshape(len(target), -1).mean(1), target)


def right(trained: nn.Module, model: Model, count: int, iterations: int, rate: float = LEARNING_RATE) -> bool:
    """Return whether trained weights are those of as many iterations of SGD in one process.

    :param count: rows of the batch of all ranks.
    :param rate: learning rate.
    """
    start, alone = network(model, scale=0), network(model, scale=0)
    optimizer = torch.optim.SGD(alone.parameters(), lr=rate)
    inputs, targets = map(torch.from_numpy, rows(count))
    for _ in range(iterations):
        optimizer.zero_grad()
        loss(alone(inputs), targets).backward()
        optimizer.step()
    weights = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in (start, alone, trained)]
    return bool((weights[2] - weights[1]).abs().max() <= TOLERANCE * (weights[1] - weights[0]).abs().max())


def check(settings: Mapping[str, str], world: int) -> None:
    """Check settings of spark.sparkdl.comm for a fit.

    :param world: number of ranks.
    :raises ConfError: no such fit can have these settings.
    """
    conf = CommConf.from_mapping({PREFIX + name: value for name, value in settings.items()})
    strategy_class(conf).check(conf, world)


def fits(way: str, topology: Topology) -> bool:
    """Return whether the strategy named ``way`` can run on a topology. Only collectives depend on the topology."""
    strategy = NamedStrategy.parse(way).strategy
    return strategy not in ALGORITHMS or not ALGORITHMS[strategy].why_ineligible(topology)


def trained_by_ddp(
    module: nn.Module,
    model: Model,
    rows_of_rank: int,
    *,
    steps: int,
    warmup: int,
    repeats: int,
    bucket_mb: float | None = None,
) -> tuple[list[float], bool]:
    """Train in the current process group by torch's DistributedDataParallel, with its own settings.

    Buckets are reduced during backward.

    :param model: the model of `module`.
    :param bucket_mb: MiB of a bucket. None: DDP's own sizes. Its first bucket is smaller.
    :return: seconds per iteration of the slowest rank in each of `repeats` runs of `steps`, and whether the final
        weights of all ranks are those of one process.
    """
    rank, count = dist.get_rank(), rows_of_rank * dist.get_world_size()
    mine = slice(rank * rows_of_rank, (rank + 1) * rows_of_rank)
    inputs, targets = (torch.from_numpy(part[mine]) for part in rows(count))
    parallel = DistributedDataParallel(module, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=LEARNING_RATE)
    samples = torch.zeros(warmup + repeats)
    for run in range(len(samples)):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss(parallel(inputs), targets).backward()
            optimizer.step()
        samples[run] = (time.perf_counter() - begun) / steps
    verified = torch.tensor([int(right(module, model, count, steps * len(samples)))])
    dist.all_reduce(samples, dist.ReduceOp.MAX)
    dist.all_reduce(verified, dist.ReduceOp.MIN)
    return samples[warmup:].tolist(), bool(verified.item())
