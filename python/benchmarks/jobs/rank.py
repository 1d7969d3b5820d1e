"""Rank program: trains an emulated network over the lab's links, without Spark.

Rank 0 prints a JSON line: ``samples``, the slowest rank's seconds per iteration in each run; ``parts``, the mean seconds of
an iteration's parts; the strategy's ``details``; and ``verified``: one process finds the same final weights. With
compressed gradients, all ranks have the same finite weights. DDP has neither parts nor details.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks import breakdown
from benchmarks.ranks import gloo_group, join_gang, rank_job
from benchmarks.workload import LEARNING_RATE, loss, network, right, rows, trained_by_ddp
from lab import Place

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import strategy_class

#: torch's DistributedDataParallel over gloo.
DDP = "ddp"
#: Rows of a rank in a step. Emulated layers wait equally long for any number.
ROWS = 4


@dataclass(frozen=True)
class RankJob:
    """Job of all ranks. ``strategy`` may be DDP.

    ``loop``, ``batching``, ``compression`` and ``bucket`` are the settings of these names.

    :param bucket: bytes of a bucket. None: the default.
    :param network: name of a profile, of whose parameters and waits each layer has the ``shrink``-th part.
    :param scale: multiplies the waits.
    :param steps: iterations of a run. ``warmup`` runs precede ``repeats`` timed runs.
    """

    strategy: str
    loop: str
    batching: str
    compression: str
    bucket: int | None
    network: str
    shrink: int
    scale: float
    steps: int
    warmup: int
    repeats: int
    timeout: float

    def profile(self) -> Profile:
        return Profile.load(self.network).scaled(1 / self.shrink, 1 / self.shrink)


def main() -> None:
    folder, job, place = rank_job(RankJob)
    profile = job.profile()
    result = (train_by_ddp if job.strategy == DDP else train_by_strategy)(folder, job, profile, place)
    if place.rank == 0:
        print(json.dumps(result), flush=True)


def train_by_ddp(folder: str, job: RankJob, profile: Profile, place: Place) -> dict[str, Any]:
    bucket_mb = None if job.bucket is None else job.bucket / (1 << 20)
    with gloo_group(folder, job.timeout):
        module, runs = network(profile, job.scale), {"warmup": job.warmup, "repeats": job.repeats}
        samples, verified = trained_by_ddp(module, profile, ROWS, steps=job.steps, **runs, bucket_mb=bucket_mb)
    return {"samples": samples, "parts": {}, "details": {}, "verified": verified}


def train_by_strategy(folder: str, job: RankJob, profile: Profile, place: Place) -> dict[str, Any]:
    conf = CommConf.from_mapping(
        {},
        strategy=job.strategy,
        compression=job.compression,
        loop=job.loop,
        batching=job.batching,
        bucket=job.bucket,
        topology=str(place.topology),
        rails=place.addresses,
        timeout=f"{job.timeout}s",
        timeline=job.steps * job.repeats,
    )
    with join_gang(folder, place, job.timeout, place.addresses[0]) as gang:
        model = FlatModel(network(profile, job.scale))
        strategy = strategy_class(conf)(conf)
        optimizer = functools.partial(torch.optim.SGD, lr=LEARNING_RATE)
        strategy.join(gang, model, OptimizerMaker(model, Optimization(optimizer=optimizer)))
        numbers = itertools.count(1)
        samples = [run(gang, model, strategy, job, numbers) for _ in range(job.warmup + job.repeats)][job.warmup :]
        strategy.finish()
        traced = strategy.trace.report(gang, job.timeout, model.values.nbytes)
        mine = breakdown.mean(breakdown.of_iteration(each["spans"]) for each in traced["iterations"])
        parts = breakdown.mean(map(json.loads, gang.all_gather(json.dumps(mine).encode(), job.timeout)))
        bits = hashlib.sha256(model.values.numpy().data).digest()
        verified = len(set(gang.all_gather(bits, job.timeout))) == 1 and bool(model.values.isfinite().all())
        if gang.rank == 0 and job.compression == "none":
            iterations = job.steps * (job.warmup + job.repeats)
            verified &= right(model.module, profile, ROWS * gang.world, iterations)
        details = strategy.details() if gang.rank == 0 else {}
        result = {"samples": samples, "parts": parts, "details": details, "verified": verified}
        strategy.close()
    return result


def run(gang: Gang, model: FlatModel, strategy: Strategy, job: RankJob, numbers: Iterator[int]) -> float:
    """Return the slowest rank's seconds per iteration of a run. ``numbers``: numbers of the next iterations."""
    mine = slice(gang.rank * ROWS, (gang.rank + 1) * ROWS)
    inputs, targets = (torch.from_numpy(part[mine]) for part in rows(ROWS * gang.world))
    gang.all_gather(b"", job.timeout)
    begun = time.perf_counter()
    for _ in range(job.steps):
        strategy.trace.begin_iteration(next(numbers))
        strategy.begin_step()
        model.clear_gradients()
        with strategy.watch.phase("forward"), strategy.forward():
            value = loss(model.module(inputs), targets)
        with strategy.watch.phase("backward"), strategy.backward(True):
            (value / gang.world).backward()
        model.complete_gradients()
        strategy.after_backward()
        strategy.update()
    seconds = (time.perf_counter() - begun) / job.steps
    return max(json.loads(theirs) for theirs in gang.all_gather(json.dumps(seconds).encode(), job.timeout))


if __name__ == "__main__":
    main()
