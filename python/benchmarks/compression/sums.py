"""Whole sums of gradients over emulated hosts, sparse ones beside dense ones.

Sparse ones select the share that the density says of their largest elements, with feedback, and send float32 values; dense
ones send everything. Theory is what the NIC of a host must take in, at the links' rate; what ranks of one host give each other
comes on top, and no link of the lab slows it down.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab import Lab
from lab.arguments import link_rate, names_of, topology_of
from lab.bench import Row, versions

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.topology import Topology

RANK_PROGRAM = Path(__file__).with_name("sum_rank.py")
SPARSE = ("hitopk", "naive-ag")
#: By the names that the CommLib paper has for them.
DENSE = {"tree-ar": "tree", "torus2d": "torus2d", "ring": "ring"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--topology", type=topology_of, help="of whole sums, such as hosts:4x2, in place of selection alone"
    )
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each host's link, each way")
    parser.add_argument(
        "--algorithms",
        type=names_of(NAMES),
        default="hitopk,naive-ag,tree-ar,torus2d",
        help=f"of {', '.join(NAMES)}",
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for all runs of one algorithm")


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Gives the topology its rate, and ends the program if sums, or one of the algorithms, cannot be on it."""
    options.topology = options.topology.with_rates(round(options.rate * 1e6))
    if options.topology.rails > 1:
        parser.error(f"--topology {options.topology.text}: sparse sums are for hosts with one NIC each")
    for name in options.algorithms:
        unfit = ALGORITHMS[DENSE[name]].why_ineligible(options.topology) if name in DENSE else ""
        if unfit:
            parser.error(f"--algorithms {name}: {unfit}")


def rows(options: Namespace) -> Iterator[Row]:
    """A row for each count and algorithm."""
    with Lab(options.topology) as lab, tempfile.TemporaryDirectory(prefix="sparkdl-compress-") as folder:
        for count in options.counts:
            for algorithm in options.algorithms:
                rendezvous = Path(folder) / f"{algorithm}-{count}"
                rendezvous.mkdir()
                asked = {
                    "algorithm": algorithm,
                    "plan": DENSE.get(algorithm, ""),
                    "count": count,
                    "density": options.density,
                    "warmup": options.warmup,
                    "repeats": options.repeats,
                    "seed": options.seed,
                    "timeout": options.timeout,
                }
                results = lab.run(
                    [sys.executable, str(RANK_PROGRAM), str(rendezvous), json.dumps(asked)], timeout=options.timeout
                )
                yield _row(algorithm, count, json.loads(results[0].stdout.splitlines()[-1]), options)


def _row(algorithm: str, count: int, result: dict[str, Any], options: Namespace) -> Row:
    topology = options.topology
    return Row(
        suite="compress",
        case="exchange",
        algorithm=algorithm,
        topology=topology.text,
        rate_mbit=options.rate,
        world=topology.world,
        bytes=4 * count,
        samples=result["samples"],
        theory_seconds=link_bytes(algorithm, topology, count, options.density) * 8 / (options.rate * 1e6),
        verified=result["verified"],
        versions=versions("torch", "numpy"),
        extra={"count": count, "density": options.density if algorithm in SPARSE else 1.0, **result["parts"]},
    )


def link_bytes(algorithm: str, topology: Topology, count: int, density: float) -> float:
    """What the NIC of a host must take in, at least."""
    hosts, slots = len(topology.hosts), topology.ranks_per_host
    if algorithm == "hitopk":
        return sum((hosts - 1) * _selected(count // slots, density) for _ in range(slots))
    if algorithm == "naive-ag":
        return (hosts - 1) * slots * _selected(count, density)
    if algorithm == "tree-ar":
        return 2 * 4 * count  # the root of each half takes in and sends out the half twice
    return 2 * (hosts - 1) / hosts * 4 * count


def _selected(elements: int, density: float) -> int:
    return SparseFormat.of_density(elements, density, flags=1).nbytes


NAMES = (*SPARSE, *DENSE)
