"""Synchronous training by torch's DistributedDataParallel, over gloo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from racing.curve import Curve
from racing.digits import Digits
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector


def train(task: Digits, updates: int, step: Callable[[], AbstractContextManager[None]]) -> Curve:
    """Of all ranks of the process group that is there. The mean of all gradients is multiplied as their sum is elsewhere."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = task.rows(rank, world)
    parallel = DistributedDataParallel(task.module())
    optimizer = torch.optim.SGD(parallel.parameters(), lr=task.rate * world)
    dist.barrier()
    curve = Curve(world)
    for number in range(1, 1 + updates // world):
        optimizer.zero_grad()
        with step():
            loss = rows.loss(parallel)
        loss.backward()
        optimizer.step()
        if rank == 0:
            curve.add(number * world, parameters_to_vector(parallel.parameters()).detach().numpy())
    return curve
