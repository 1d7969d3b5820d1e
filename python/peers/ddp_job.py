"""A Spark application of bench_peers.py: DistributedDataParallel under TorchDistributor, over gloo.

GLOO_SOCKET_IFNAME names the network interface, in the executors' environment.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from workload import LEARNING_RATE, Job, loss, nbytes, network, right, rows


def train(job: Job) -> list[dict[str, Any]]:
    """One rank. What rank 0 returns arrives at the driver."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.timeout))
    rank, results = int(os.environ["RANK"]), []
    for name in job.models:
        mine = slice(rank * job.rows, (rank + 1) * job.rows)
        inputs, targets = (torch.from_numpy(part[mine]) for part in rows(job.rows * job.ranks))
        model = DistributedDataParallel(network(name))
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        samples = torch.zeros(job.warmup + job.repeats)
        for run in range(len(samples)):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(job.steps):
                optimizer.zero_grad()
                loss(model(inputs), targets).backward()
                optimizer.step()
            samples[run] = (time.perf_counter() - begun) / job.steps
        verified = torch.tensor([int(right(model.module, name, job.rows * job.ranks, job.iterations))])
        dist.all_reduce(samples, dist.ReduceOp.MAX)
        dist.all_reduce(verified, dist.ReduceOp.MIN)
        timed = samples[job.warmup :].tolist()
        results.append({"bytes": nbytes(name), "samples": timed, "verified": bool(verified.item())})
    dist.destroy_process_group()
    return results


def main() -> None:
    job = Job.here()
    spark = SparkSession.builder.appName("torch DDP").getOrCreate()
    job.write(TorchDistributor(num_processes=job.ranks, local_mode=False, use_gpu=False).run(train, job))
    spark.stop()


if __name__ == "__main__":
    main()
