"""The parallel tensor operator of the CommLib paper: LARS over the 161 layers of ResNet-50. Every rank computes all norms,
or each computes a part and the ranks all-gather them.

    python python/benchmarks compression/pto --topology star:8 --loopback --json

Cases: `lars`, a step of the optimizer; `norms`, the norms of parameters and gradients alone, which the paper times (11 ms,
and 7 ms in parts on 128 GPUs, section 5.4); `gather`, the all-gather of strategy ps in a step of LARS or LAMB, 16 bytes
per layer. Algorithms: `local`; `pto-gang`, gathered through rank 0 as in fits; `pto-ring`, by this package's ring.
Verified: all ways lead from the same weights to the same weights, but for rounding, with the same bits on all ranks.

Seconds are the slowest rank's. Each rank has one thread. With fewer cores than ranks, ranks wait for each other's norms
when each computes all of them. So on two cores `--topology star:2` says more about that than star:8.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.command import Note
from benchmarks.compression.pto_rank import LOCALLY, Job
from benchmarks.ranks import run_ranks
from lab import Lab
from lab.arguments import topology_of
from lab.bench import Row

RATE_MBIT = 200.0
TIMEOUT = 300.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    topology = options.topology.with_rates(round(RATE_MBIT * 1e6))
    job = Job(options.warmup, options.repeats, TIMEOUT, **({"steps": 2, "width": 4} if options.quick else {}))
    with Lab.loopback(options.topology) if options.loopback else Lab(topology) as cluster:
        results = run_ranks(cluster, Path(__file__).with_name("pto_rank.py"), job, TIMEOUT)
    for found in results:
        yield Row(
            suite="pto",
            case=found["case"],
            algorithm=found["way"] if found["way"] == LOCALLY else f"pto-{found['way']}",
            topology="loopback" if options.loopback else topology.text,
            rate_mbit=None if options.loopback else RATE_MBIT,
            world=topology.world,
            bytes=found["bytes"],
            samples=found["samples"],
            verified=found["verified"],
        )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument(
        "--topology", type=topology_of, default="star:8", help="see sparkdl_comm.topology; one rank per host"
    )
    parser.add_argument("--loopback", action="store_true", help="no links: what the machine does itself")
    return parser.parse_args(words)
