"""Training by torch's DistributedDataParallel, under Spark (benchmark `peers`) and without it (benchmark `jobs`)."""

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
    """Train in the current process group, with DDP's own settings. Buckets are reduced during backward.

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
