"""Training by torch's DistributedDataParallel, of the benchmark `peers` (under Spark) and the benchmark `jobs` (without)."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from benchmarks.workload import LEARNING_RATE, Model, loss, right, rows
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def trained(
    module: nn.Module,
    model: Model,
    rows_of_rank: int,
    *,
    steps: int,
    warmup: int,
    repeats: int,
    bucket_mb: float | None = None,
) -> tuple[list[float], bool]:
    """Trains in a process group that is initialised, with DDP's own settings: buckets are reduced while backward goes on.

    :param model: what `module` is made of.
    :param bucket_mb: MiB of a bucket; None: DDP's own sizes, the first one smaller than the others.
    :return: seconds per iteration in each of `repeats` runs of `steps`, the slowest rank's; and whether all ranks' weights
        are at last those that one process finds.
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
