"""Application of the benchmark `zero`: a network is trained by several systems, with the same steps.

Each rank writes a file, SYSTEM-RANK.json, as all ranks are on one machine. Rank 0 reads the CPU seconds of all processes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
from benchmarks import workload
from benchmarks.applications import answer
from benchmarks.case import share_of
from benchmarks.workload import Model, hidden_of, network, right
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparkdl_comm import Callback, TorchEstimator
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.train.callbacks import TrainingState

DEFAULT, GLOO, HOROVOD = "default", "gloo", "horovod"
#: MiB of DDP's buckets by system. None: DDP's default, 25 MiB.
BUCKETS: dict[str, float | None] = {"ddp": None, "ddp-4": 4, "ddp-1": 1}
#: Networks that compute.
REAL: dict[str, Model] = {"perceptron": hidden_of(8 << 20), "lenet5": "lenet5"}
#: The only row, [1, 784], and its target, [1]. So steps are equal, whatever rows a rank gets.
ROW, TARGET = map(torch.from_numpy, workload.rows(1))


def model_of(name: str, forward: float) -> Model:
    """Return a network. ``forward``: seconds, if it is emulated."""
    return REAL[name] if name in REAL else share_of(name, forward)


@dataclass(frozen=True)
class Job:
    """Job of an application.

    :param network: network of a cell.
    :param forward: seconds of forward of an emulated network.
    :param rows: rows of a rank in a step.
    :param first: steps before the timed ones, which are `steps` for each of the samples.
    :param folder: folder for the ranks' results, SYSTEM-RANK.json.
    :param root: process whose descendants' CPU seconds count.
    """

    systems: list[str]
    network: str
    forward: float
    ranks: int
    rows: int
    first: int
    steps: int
    samples: int
    folder: str
    root: int

    @property
    def iterations(self) -> int:
        """All steps."""
        return self.first + self.steps * self.samples

    @property
    def learning_rate(self) -> float:
        """Learning rate by which also the last step changes weights by more than the check allows."""
        return 5e-6 if self.network == "perceptron" else 1e-3

    @property
    def model(self) -> Model:
        return model_of(self.network, self.forward)


def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the loss. Labels only tell rows apart, as a row's contents decide which rank gets it."""
    return workload.loss(output, TARGET.expand(len(output)))


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its descendants. Those of ended ones are in their parents'."""
    found, parent = 0.0, psutil.Process(root)
    for process in [parent, *parent.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])
    return found


def peak_bytes(process: int) -> int:
    """Return the largest resident memory of a process so far."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[0])


class Meter(Callback):
    """Meter of a rank: ends of steps, CPU seconds of the timed steps, largest memory, and a check of the weights."""

    def __init__(self, job: Job, system: str) -> None:
        self._job, self._system, self._cpu = job, system, 0.0

    def on_train_begin(self, state: TrainingState) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._ends = [time.perf_counter()]

    def on_step_end(self, state: TrainingState) -> None:
        step = len(self._ends)
        if state.rank == 0 and step == self._job.first:
            self._cpu -= cpu_seconds(self._job.root)
        self._ends.append(time.perf_counter())
        if state.rank == 0 and step == self._job.iterations:
            self._cpu += cpu_seconds(self._job.root)

    def on_train_end(self, state: TrainingState) -> None:
        executor = next((each.pid for each in psutil.Process().parents() if each.name() == "java"), self._job.root)
        result = {
            "ends": self._ends,
            "cpu_seconds": self._cpu,
            "rank_bytes": peak_bytes(os.getpid()),
            "executor_bytes": peak_bytes(executor),
            "verified": right(state.module, self._job.model, 1, self._job.iterations, self._job.learning_rate),
        }
        Path(self._job.folder, f"{self._system}-{state.rank}.json").write_text(json.dumps(result))


def train(job: Job, system: str, rank: int, module: nn.Module, parallel: nn.Module, optimizer: Any) -> None:
    """Train a rank by another system.

    :param parallel: the module, or what wraps it.
    """
    inputs, meter, state = ROW.expand(job.rows, -1), Meter(job, system), TrainingState(rank, job.ranks, module)
    meter.on_train_begin(state)
    for _ in range(job.iterations):
        optimizer.zero_grad()
        loss(parallel(inputs), inputs).backward()
        optimizer.step()
        meter.on_step_end(state)
    meter.on_train_end(state)


def train_with_ddp(job: Job, system: str) -> None:
    """Train a rank under TorchDistributor."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    model, bucket = job.model, BUCKETS[system]
    if isinstance(model, Profile) and bucket is None:
        bucket = 25 * model.parameters / Profile.load(job.network).parameters
    module = network(model)
    parallel = DistributedDataParallel(module, bucket_cap_mb=bucket)
    train(job, system, dist.get_rank(), module, parallel, torch.optim.SGD(module.parameters(), lr=job.learning_rate))
    dist.barrier()
    dist.destroy_process_group()


def train_with_horovod(job: Job) -> None:
    """Train a rank under horovod.spark."""
    hvd = import_module("horovod.torch")
    torch.set_num_threads(1)
    hvd.init()
    module = network(job.model)
    sgd = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=module.named_parameters())
    train(job, HOROVOD, hvd.rank(), module, module, optimizer)
    hvd.shutdown()


def fit(spark: SparkSession, job: Job, system: str) -> dict[str, Any]:
    """Fit by TorchEstimator. Return the summary."""
    # An emulated network has a share of the parameters, and they decide on the default. The real one's is ps.
    strategy = system if system != DEFAULT else "ps" if isinstance(job.model, Profile) else None
    count, features = job.ranks * job.rows, F.lit(ROW[0].tolist()).cast("array<float>").alias("features")
    model = TorchEstimator(
        model=functools.partial(network, job.model),
        loss=loss,
        optimizer=functools.partial(torch.optim.SGD, lr=job.learning_rate),
        callbacks=[Meter(job, system)],
        batchSize=count,
        num_workers=job.ranks,
        **({} if strategy is None else {"strategy": strategy}),
    ).fit(spark.range(count * job.iterations).select(features, F.col("id").cast("float").alias("label")))
    return model.summary or {}


def results(spark: SparkSession, job: Job) -> Iterator[dict[str, Any]]:
    for system in job.systems:
        summary = {}
        if system in BUCKETS:
            TorchDistributor(job.ranks, local_mode=False, use_gpu=False).run(train_with_ddp, job, system)
        elif system == HOROVOD:
            import_module("horovod.spark").run(train_with_horovod, (job,), num_proc=job.ranks)
        else:
            summary = fit(spark, job, system)
        ranks = [json.loads(Path(job.folder, f"{system}-{rank}.json").read_text()) for rank in range(job.ranks)]
        kept = {name: summary[name] for name in ("strategy", "batching") if name in summary}
        yield {"system": system, "ranks": ranks, **kept}


if __name__ == "__main__":
    answer("bench_zero", Job, results)
