"""Seconds of a training iteration on emulated networks, without Spark: the proportions of the BML paper's figures 6 and 7.

    python python/benchmarks jobs --profile lenet5 --rows 128,1024 --systems bml@bcube:3,2 p2p-ps@star:9 ddp@star:9

A system is a strategy and its topology. `ring+exact:0.001@hosts:4x2` has compressed gradients, for the CommLib paper's
table 3. `ddp` is torch's DistributedDataParallel over gloo with its own settings, which overlaps backward like this
package's collectives. Ranks are processes that call the strategy like the training loop. The start and the end of a Spark
job are not included.

Computing is emulated: layers wait as long as they would compute for `--rows` rows at `--teraflops`, and every byte is sent.
The BML paper's links have 40 Gbit/s (`--paper-rate`). Layers compute slower in the proportion of that rate to the lab's.
With `--shrink` D every layer has about 1/D of its parameters and of its computing time, which keeps the proportion.

`--loop` takes the loops of the linear-pipeline paper (L. Wang et al., 2016): `root-overlap` is its Algorithm 1, `root`
Algorithm 2, `all-reduce` Algorithm 3 (its Table 2 and figure 5); and `decoupled`. Reductions overlap backward in all of
them. iBatch's planner cuts the buckets of `decoupled+ibatch` after some nine iterations, which the warm-up should cover.

Theory of an iteration, from computing and the links' capacity:

- `all-reduce`: forward, then the longer of backward and the all-reduce. With compressed gradients: computing alone.
- `root-overlap`: the longer of forward and a broadcast, then the longer of backward and a reduce. `root`: forward, the
  longer of backward and a reduce, then a broadcast.
- `decoupled`: the longer of computing and the all-reduce, and the exchange of the first layers' bucket, which nothing
  hides; of the first layer alone where buckets are planned.

`parts`: seconds of an iteration by part, the mean of all ranks, without `ddp` (see breakdown.py).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks import breakdown, workload
from benchmarks.case import passes, shrunk
from benchmarks.command import Note
from benchmarks.ranks import gloo_group, join_gang, rank_job, run_ranks
from benchmarks.workload import LEARNING_RATE, check, loss, network, right, trained_by_ddp
from lab import Lab, Place
from lab.arguments import link_rate, numbers, positive, size, whole_numbers
from lab.bench import Row, allreduce_seconds, broadcast_seconds

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.sim.profile import Profile, shipped
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.parameter_space import group_into_buckets
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.topology import Topology

#: Seconds for all runs of one row.
TIMEOUT = 300.0
LOOPS = ("all-reduce", "root", "root-overlap", "decoupled", "decoupled+ibatch")


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    nbytes, bucket = 4 * options.profile.parameters, options.bucket or CommConf.from_mapping({}).collective.bucket
    loads = [(0.0, exchange) for exchange in options.exchange or ()]
    loads = loads or list(itertools.product(options.teraflops, options.rows))
    for (name, loop, topology), (speed, load) in itertools.product(cases(options), loads):
        links = allreduce_seconds(len(topology.hosts), nbytes, options.rate) / topology.rails
        scale = scale_of(options, speed, load, links)
        strategy, _, compression = name.partition("+")
        how, _, batching = loop.partition("+")
        job = RankJob(
            strategy,
            how,
            batching or "fixed",
            compression or "none",
            options.bucket,
            options.name,
            options.shrink,
            scale,
            options.steps,
            options.warmup,
            options.repeats,
            TIMEOUT,
        )
        with Lab(topology) as lab:
            [result] = run_ranks(lab, Path(__file__), job, TIMEOUT)
        forward, backward = (scale * seconds for seconds in passes(options.profile))
        first = first_layers(options.profile, 1 if batching else bucket)
        whole = broadcast_seconds(nbytes, options.rate)
        theory = {
            "all-reduce": forward + max(backward, 0.0 if compression else links),
            "root": forward + max(backward, whole) + whole,
            "root-overlap": max(forward, whole) + max(backward, whole),
            "decoupled": max(forward + backward, links) + links * first / nbytes,
        }
        yield Row(
            suite="jobs",
            case=options.name,
            algorithm=name,
            topology=topology.text,
            rate_mbit=options.rate,
            world=topology.world,
            bytes=nbytes,
            samples=result["samples"],
            theory_seconds=theory[how],
            verified=result["verified"],
            compute="emulated",
            extra={
                "loop": loop,
                ("exchange" if options.exchange else "rows"): load,
                "computing": forward + backward,
                "parts": result["parts"],
                **_planned(result["details"]),
                "teraflops": speed or None,
                "shrink": options.shrink,
            },
        )


def _planned(details: dict[str, Any]) -> dict[str, Any]:
    """Return the number of buckets of decoupled loops, and the decisions about planned ones."""
    buckets = {"buckets": details["decoupled"]["buckets"]} if "decoupled" in details else {}
    return buckets | ({"decisions": details["auto"]["decisions"]} if "auto" in details else {})


def cases(options: Namespace) -> list[tuple[str, str, Topology]]:
    """Return the systems, this package's with each loop."""
    return [
        (name, loop, topology)
        for name, topology in options.systems
        for loop in (options.loop if name != DDP else ["all-reduce"])
    ]


def scale_of(options: Namespace, teraflops: float, load: float, links: float) -> float:
    """Return the factor of the profile's times.

    :param load: rows, or a value of `--exchange`.
    :param links: seconds of an all-reduce by the links' capacity.
    """
    if options.exchange:
        return links / load / passes(options.profile)[1]
    return load / options.profile.rows * options.paper_rate / options.rate / teraflops


def first_layers(profile: Profile, bucket: int) -> int:
    """Return the bytes of the bucket that backward completes last."""
    sizes = [4 * layer.parameters for layer in reversed(profile.layers)]
    last = group_into_buckets(sizes, bucket)[-1]
    return sum(sizes[last.start : last.stop])


def system(text: str, rate_mbit: float, loops: Sequence[str]) -> tuple[str, Topology]:
    strategy, _, shape = text.partition("@")
    topology = Topology.parse(shape).with_rates(round(rate_mbit * 1e6))
    name, _, compression = strategy.partition("+")
    if name != DDP:
        for loop in loops:
            how, _, batching = loop.partition("+")
            settings = {"collective.loop": how, "collective.batching": batching or "fixed"}
            check({"strategy": name, "compression": compression or "none", **settings}, topology.world)
    elif compression:
        raise ConfError(f"--systems {text}: {DDP} sends whole gradients here")
    if strategy == DDP and topology.rails > 1:
        raise ConfError(f"--systems {text}: {DDP} knows one NIC per host, {shape} has {topology.rails}; take star:N")
    return strategy, topology


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--profile", choices=shipped(), default="lenet5")
    parser.add_argument(
        "--rows", type=whole_numbers(), default="128,256,512,1024", help="of a rank in an iteration, the sub-minibatch"
    )
    parser.add_argument(
        "--exchange",
        type=numbers,
        help="in place of --rows and --teraflops: time of an all-reduce over time of backward, such as 1,1.5",
    )
    parser.add_argument(
        "--loop",
        nargs="+",
        choices=LOOPS,
        default=LOOPS[:1],
        help="collective.loop, with +ibatch as collective.batching, one after another; not for ddp",
    )
    parser.add_argument(
        "--bucket", type=size, help="bytes of gradients that travel at once, at least; default: what each system has"
    )
    parser.add_argument(
        "--teraflops", type=numbers, default="4", help="of a host, one after another; the profiles' times are for 1"
    )
    parser.add_argument("--shrink", type=positive, default=1, help="for networks that are too large for one machine")
    parser.add_argument(
        "--systems",
        nargs="+",
        default=["bml@bcube:3,2", "p2p-ps@star:9", "ddp@star:9"],
        help=f"strategy@topology, strategy+compression@topology or {DDP}@topology, one after another",
    )
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each link, each way")
    parser.add_argument("--paper-rate", type=float, default=40_000.0, help="Mbit/s that computing is in proportion to")
    parser.add_argument("--steps", type=positive, default=3, help="iterations of a run")
    options = parser.parse_args(words)
    if options.quick:
        options.rows, options.steps, options.shrink = options.rows[:1], 1, 64
        options.exchange = options.exchange and options.exchange[:1]
    options.name, options.profile = options.profile, shrunk(options.profile, options.shrink)
    try:
        options.systems = [system(text, options.rate, options.loop) for text in options.systems]
    except ConfError as error:
        parser.error(str(error))
    return options


# --- The rank program -------------------------------------------------------------------------------------------------

#: torch's DistributedDataParallel over gloo.
DDP = "ddp"
#: Rows of a rank in a step. Emulated layers wait equally long for any number.
ROWS = 4


@dataclass(frozen=True)
class RankJob:
    """Job of all ranks. ``strategy`` may be DDP.

    ``loop``, ``batching``, ``compression`` and ``bucket`` are the settings of these names.

    :param bucket: bytes of a bucket. None: the default.
    :param network: name of a profile. Its parameters and waits are divided by ``shrink``.
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


def main() -> None:
    """Train, and print the result on rank 0.

    - ``samples``: seconds per iteration of the slowest rank, for each run.
    - ``parts``: mean seconds of each part of an iteration. Empty for DDP.
    - ``details``: details of the strategy. Empty for DDP.
    - ``verified``: True if one process finds the same final weights. With compressed gradients: True if all ranks have
      the same finite weights.
    """
    folder, job, place = rank_job(RankJob)
    profile = shrunk(job.network, job.shrink)
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
    inputs, targets = (torch.from_numpy(part[mine]) for part in workload.rows(ROWS * gang.world))
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
