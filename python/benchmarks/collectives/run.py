"""Collectives of this package on emulated networks, beside the bound of their links and beside peers.

    python python/benchmarks collectives --topology bcube:3,2 --rate 200 --sizes 4,16 --algorithms bml,ring --json

There is one rank per host, and it uses all rails of the topology. Theory of an all-reduce: each rank sends 2 (N-1)/N x
bytes over all its rails together. Theory of the other operations: all bytes pass the fastest rail. A repeat is timed
from a barrier to the end of the slowest rank, and its result is checked on every rank. `predicted` is the cost model's
time of the plan's critical path.

With `--calls N` a repeat is N calls one after another, each on its own vector, and seconds are the mean. A rank begins
the next call without a barrier, as in training.

`--rate 100,200` gives each rail its own rate. Each topology is measured with each block.

With `--peers` other systems run in the same call, on star:N with as many hosts: they use one NIC per host. The links'
counters prove that their data crossed the links. A peer is skipped with one line if it is not installed.

- `gloo`: torch.distributed's. `openmpi`: over TCP, by its own choice of algorithm, and by its ring for the all-reduce.
- `gloo-loopback`, and `openmpi-shm` in shared memory: the same without a network.

`--loopback` runs on the loopback interface, which has no rate and so no theory. It reports bus bandwidth, 2 (N-1)/N x
bytes / seconds, and CPU seconds per GB.
"""

from __future__ import annotations

import itertools
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.collectives.peers import OPERATIONS, PEERS, RANK_PROGRAM, TIMEOUT, Measured, job_of
from benchmarks.command import Note
from benchmarks.ranks import run_ranks
from lab import Lab
from lab.arguments import link_rates, names_of, positive, sizes, topology_of, whole_numbers
from lab.bench import Row, allreduce_seconds, broadcast_seconds, per_gigabyte, versions

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost, predict
from sparkdl_comm.errors import ConfError, LabUnavailableError
from sparkdl_comm.topology import Topology


def own(options: Namespace, topology: Topology) -> Iterator[Row]:
    """Measure all algorithms, operations, blocks and sizes on a topology, and yield their rows of results."""
    with Lab.loopback(topology) if options.loopback else Lab(topology) as cluster:
        for algorithm, block in itertools.product(options.algorithms, options.block):
            asked = [operation for operation in options.operations if operation in ALGORITHMS[algorithm].operations]
            for result in run_ranks(cluster, RANK_PROGRAM, job_of(options, algorithm, asked, block), TIMEOUT):
                more: dict[str, Any] = {}
                if not options.loopback:
                    count, cost = result["bytes"] // 4, Cost.of(topology)
                    predicted = predict(algorithm, result["case"], topology, count, 4, cost, block)
                    more |= {"block": predicted.block, "best": not block, "predicted": predicted.seconds}
                    more |= {"rates": options.rate} if len(options.rate) > 1 else {}
                yield _row(topology, Measured(algorithm, [], not options.loopback), result, options.calls, more)


def peers(options: Namespace, topology: Topology, note: Note) -> Iterator[Row]:
    """Measure other systems, and yield their rows of results. Note which systems are skipped.

    They run on a star with the number of hosts of the topology, at the rate of the fastest NIC.
    """
    star = Topology.parse(f"star:{len(topology.hosts)}").with_rates(round(max(options.rate) * 1e6))
    for name in options.peers:
        try:
            for found in PEERS[name](star, options):
                for result in found.results:
                    yield _row(star, found, result, options.calls)
        except LabUnavailableError as reason:
            note(f"{name} skipped: {reason}")


def _row(
    topology: Topology, of: Measured, result: dict[str, Any], calls: int, more: Mapping[str, Any] | None = None
) -> Row:
    nbytes, operation = result["bytes"], result["case"]
    extra = {"cpu_seconds": result["cpu_seconds"], "calls": calls, **(more or {})}
    if operation == "all_reduce" and not of.is_linked:
        extra |= per_gigabyte(topology.world, nbytes, statistics.median(result["samples"]), result["cpu_seconds"])
    return Row(
        suite="collectives",
        case=operation.replace("_", ""),
        algorithm=of.algorithm,
        topology=topology.text if of.is_linked else "loopback",
        rate_mbit=statistics.fmean(topology.rates) / 1e6 if of.is_linked else None,
        world=topology.world,
        bytes=nbytes,
        samples=result["samples"],
        theory_seconds=theory_seconds(operation, topology, nbytes) if of.is_linked else None,
        verified=result["verified"],
        versions=versions() | of.installed,
        extra=extra,
    )


def theory_seconds(operation: str, topology: Topology, nbytes: int) -> float:
    """Return a lower bound by the links' rates, for any algorithm."""
    if operation != "all_reduce":
        return broadcast_seconds(nbytes, max(topology.rates) / 1e6)  # over one rail
    return allreduce_seconds(len(topology.hosts), nbytes, sum(topology.rates) / 1e6)


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    for topology in options.topology:
        yield from own(options, topology)
        yield from peers(options, topology, note)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument(
        "--topology",
        nargs="+",
        type=topology_of,
        default=[topology_of("bcube:3,2")],
        help="topologies, see sparkdl_comm.topology",
    )
    parser.add_argument(
        "--rate",
        type=link_rates,
        default="200",
        help="Mbit/s of each link, each way: one for all rails, or one per rail",
    )
    parser.add_argument(
        "--sizes", dest="bytes", type=sizes, default="4,16", help="sizes of the vector: 16 (MiB), 64KiB, ..."
    )
    parser.add_argument("--algorithms", help="algorithms (default: all that fit the topologies)")
    parser.add_argument(
        "--operations", type=names_of(OPERATIONS), default="all_reduce", help=f"operations: {', '.join(OPERATIONS)}"
    )
    parser.add_argument(
        "--block",
        type=whole_numbers(0),
        default="0",
        help="bytes per block of pipelines; 0: the cost model's choice",
    )
    parser.add_argument("--calls", type=positive, default=1, help="calls per repeat, one after another")
    parser.add_argument("--peers", type=names_of(PEERS), default=[], help=f"peers on star:N: {', '.join(PEERS)}")
    parser.add_argument("--loopback", action="store_true", help="use the loopback interface, without links")
    options = parser.parse_args(words)
    if options.quick:
        options.bytes = sizes("256KiB")
    if not options.loopback:  # on loopback the ranks measure the cost of a byte
        try:
            options.topology = [
                each.with_rates(*(round(rate * 1e6) for rate in options.rate)) for each in options.topology
            ]
        except ConfError as error:
            parser.error(f"--rate: {error}")
    fitting = [
        name for name, algorithm in ALGORITHMS.items() if not any(map(algorithm.why_ineligible, options.topology))
    ]
    options.algorithms = options.algorithms.split(",") if options.algorithms else fitting
    if unfit := set(options.algorithms) - set(fitting):
        texts = ", ".join(topology.text for topology in options.topology)
        parser.error(f"{', '.join(sorted(unfit))}: {texts} fits {', '.join(fitting)}")
    return options
