"""The parallel tensor operator of the CommLib paper: LARS over the 161 layers of ResNet-50, its norms computed by every
rank, or dealt out over the ranks and all-gathered.

    python python/benchmarks compression/pto --topology star:8 --loopback --json

Cases: `lars`, a whole step of the optimizer; `norms`, those of parameters and gradients alone, which is what the paper
times (11 ms, and 7 ms dealt out over 128 GPUs, section 5.4); `gather`, the all-gather that strategy ps does in each step of
LARS or LAMB, 16 bytes for each layer. Algorithms: `local`; `pto-gang`, gathered through rank 0, as fits do; `pto-ring` and so
on, by an algorithm of this package. All repeats begin with the same weights: they are right if the ways lead to the same ones
but for rounding, with the same bits on all ranks.

Seconds are those of the slowest rank. Each has one thread. Where there are fewer cores than ranks, ranks wait for each other's
norms when each computes all of them, as they would not on machines of their own: `--topology star:2` on two cores tells
more of that than star:8. CPU seconds are those of all ranks.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.command import Note
from lab import Lab
from lab.arguments import link_rate, positive, topology_of
from lab.bench import Row, versions

from sparkdl_comm.collectives.algorithms import ALGORITHMS

RANK_PROGRAM = str(Path(__file__).with_name("pto_rank.py"))


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="sparkdl-pto-") as folder:
        yield from _rows(options, folder)


def _rows(options: Namespace, folder: str) -> Iterator[Row]:
    topology = options.topology
    ways = ",".join(["local", *options.gathers])
    numbers = [options.warmup, options.repeats, options.steps, options.timeout, options.width]
    with Lab.loopback(topology) if options.loopback else Lab(topology) as cluster:
        results = cluster.run(
            [sys.executable, RANK_PROGRAM, folder, ways, *map(str, numbers)],
            timeout=options.timeout,
        )
    for line in results[0].stdout.splitlines():
        found = json.loads(line)
        yield Row(
            suite="pto",
            case=found["case"],
            algorithm=found["way"] if found["way"] == "local" else f"pto-{found['way']}",
            topology="loopback" if options.loopback else topology.text,
            rate_mbit=None if options.loopback else options.rate,
            world=topology.world,
            bytes=found["bytes"],
            samples=found["samples"],
            verified=found["verified"],
            versions=versions("torch"),
            extra={"cpu_seconds": found["cpu_seconds"], "steps": options.steps},
        )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument(
        "--topology", type=topology_of, default="star:8", help="see sparkdl_comm.topology; one rank per host"
    )
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each link, each way")
    parser.add_argument("--loopback", action="store_true", help="no links: what the machine does itself")
    parser.add_argument("--gathers", default="gang,ring", help="gang, or algorithms that do all-gathers")
    parser.add_argument("--steps", type=positive, default=10, help="one after another, in each repeat")
    parser.add_argument("--width", type=positive, default=64, help="channels of the network's first convolution")
    parser.add_argument("--timeout", type=positive, default=300, help="seconds for all of it")
    options = parser.parse_args(words)
    if options.quick:
        options.width, options.steps, options.repeats = 4, 2, 1
    if not options.loopback:
        options.topology = options.topology.with_rates(round(options.rate * 1e6))
    able = [
        name
        for name, algorithm in ALGORITHMS.items()
        if "all_gather" in algorithm.operations and not algorithm.why_ineligible(options.topology)
    ]
    options.gathers = options.gathers.split(",")
    if unable := set(options.gathers) - {"gang", *able}:
        parser.error(f"{', '.join(sorted(unable))}: on {options.topology.text}, gang, {', '.join(able)} all-gather")
    return options
