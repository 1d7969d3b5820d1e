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

import itertools
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import Note
from benchmarks.jobs.rank import DDP, RankJob
from benchmarks.ranks import run_ranks
from benchmarks.workload import check
from lab import Lab
from lab.arguments import link_rate, numbers, positive, size, whole_numbers
from lab.bench import Row, allreduce_seconds, broadcast_seconds

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.profile import Profile, shipped
from sparkdl_comm.space.parameter_space import group_into_buckets
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
            [result] = run_ranks(lab, Path(__file__).with_name("rank.py"), job, TIMEOUT)
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


def passes(profile: Profile) -> tuple[float, float]:
    """Return the seconds of forward and of backward."""
    forward, backward = (math.fsum(getattr(layer, way) for layer in profile.layers) for way in ("forward", "backward"))
    return forward, backward


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
    share = 1 / options.shrink
    options.name, options.profile = options.profile, Profile.load(options.profile).scaled(share, share)
    try:
        options.systems = [system(text, options.rate, options.loop) for text in options.systems]
    except ConfError as error:
        parser.error(str(error))
    return options
