"""Spark application of the benchmark `peers`: DistributedDataParallel under TorchDistributor, over gloo.

GLOO_SOCKET_IFNAME in the executors' environment names the network interface.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from benchmarks.applications import answer
from benchmarks.workload import Job, nbytes, perceptron, trained_by_ddp
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(job: Job) -> list[dict[str, Any]]:
    """Train on one rank. The driver gets the results of rank 0."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.timeout))
    results = []
    for hidden in job.models:
        counts = {"steps": job.steps, "warmup": job.warmup, "repeats": job.repeats}
        samples, verified = trained_by_ddp(perceptron(hidden), hidden, job.rows, **counts)
        results.append({"bytes": nbytes(hidden), "samples": samples, "verified": verified})
    dist.destroy_process_group()
    return results


def results(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = TorchDistributor(job.ranks, local_mode=False, use_gpu=False).run(train, job)
    return found


if __name__ == "__main__":
    answer("torch DDP", Job, results)
