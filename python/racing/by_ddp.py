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


def train(
    task: Digits, updates: int, step: Callable[[], AbstractContextManager[None]], begin: Callable[[], Curve]
) -> Curve | None:
    """Of all ranks of the process group that is there. The mean of all gradients is multiplied as their sum is elsewhere.

    The backward pass, in which DDP sends, is not in ``step``. ``begin``: called by rank 0, when all are ready; the others have
    no curve.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = task.rows(rank, world)
    parallel = DistributedDataParallel(task.module())
    optimizer = torch.optim.SGD(parallel.parameters(), lr=task.rate * world)
    dist.barrier()
    curve = begin() if rank == 0 else None
    for number in range(1, 1 + updates // world):
        optimizer.zero_grad()
        with step():
            loss = rows.loss(parallel)
        loss.backward()
        optimizer.step()
        if curve is not None:
            curve.add(number * world, parameters_to_vector(parallel.parameters()).detach().numpy())
    return curve
