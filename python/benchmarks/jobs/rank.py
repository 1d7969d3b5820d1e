"""Rank program: trains an emulated network by a strategy of this package, over the lab's links and without Spark.

    python rank.py RENDEZVOUS_FOLDER JOB

JOB: JSON of a RankJob. Rank 0 prints a JSON line: bytes of the parameters, seconds per iteration in each run (the
slowest rank's), the mean of what the parts of an iteration take, what the strategy says of itself, and whether the weights
are at last those that one process finds; of compressed gradients, whether they are finite and the same bits on all ranks.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks import breakdown
from benchmarks.rendezvous import join_gang
from benchmarks.workload import LEARNING_RATE, ROWS, RankJob, loss, right, rows
from lab import Place
from lab.emulated import EmulatedNetwork

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import strategy_class


def main() -> None:
    folder, job = sys.argv[1], RankJob(**json.loads(sys.argv[2]))
    place = Place.here()
    torch.set_num_threads(1)
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
    gang = join_gang(folder, place, job.timeout, place.addresses[0])
    with gang:
        profile = Profile.read(Path(job.profile))
        model = FlatModel(EmulatedNetwork(profile, outputs=1, scale=job.scale))
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
        if gang.rank == 0:
            if job.compression == "none":
                iterations = job.steps * (job.warmup + job.repeats)
                verified &= right(model.module, profile, ROWS * gang.world, iterations)
            told = {"bytes": 4 * model.count, "samples": samples, "parts": parts, "verified": verified}
            told["details"] = strategy.details()
            print(json.dumps(told), flush=True)
        strategy.close()
        gang.wait_until_alone(job.timeout)


def run(gang: Gang, model: FlatModel, strategy: Strategy, job: RankJob, numbers: Iterator[int]) -> float:
    """Seconds per iteration, of the slowest rank. ``numbers``: of the iterations to come."""
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
    taken = (time.perf_counter() - begun) / job.steps
    return max(json.loads(theirs) for theirs in gang.all_gather(json.dumps(taken).encode(), job.timeout))


if __name__ == "__main__":
    main()
