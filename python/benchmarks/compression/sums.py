"""Whole sums of gradients over emulated hosts: sparse ones, of the largest elements with feedback, beside dense ones.

Theory is the traffic into the NIC of a host at the links' rate. Traffic between ranks of one host comes on top, and no link
of the lab slows it down.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compression.sum_rank import Job
from benchmarks.ranks import run_ranks
from lab import Lab
from lab.bench import Row

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

SPARSE = ("hitopk", "naive-ag")
#: The CommLib paper's name -> algorithm.
DENSE = {"tree-ar": "tree", "torus2d": "torus2d", "ring": "ring"}
NAMES = (*SPARSE, *DENSE)
#: Seconds for all runs of one algorithm.
TIMEOUT = 600.0


def check(topology: Topology, algorithms: Sequence[str]) -> None:
    """Check that algorithms can run on a topology.

    :raises ConfError: one cannot.
    """
    if topology.rails > 1:
        raise ConfError(f"--topology {topology.text}: sparse sums are for hosts with one NIC each")
    for name in algorithms:
        unfit = ALGORITHMS[DENSE[name]].why_ineligible(topology) if name in DENSE else ""
        if unfit:
            raise ConfError(f"--algorithms {name}: {unfit}")


def rows(options: Namespace) -> Iterator[Row]:
    """Yield a row for each count and algorithm."""
    with Lab(options.topology) as lab:
        for count in options.counts:
            for algorithm in options.algorithms:
                plan = DENSE.get(algorithm, "")
                job = Job(algorithm, plan, count, options.density, options.warmup, options.repeats, TIMEOUT)
                [result] = run_ranks(lab, Path(__file__).with_name("sum_rank.py"), job, TIMEOUT)
                yield _row(algorithm, count, result, options)


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
        extra={"count": count, "density": options.density if algorithm in SPARSE else 1.0, **result["parts"]},
    )


def link_bytes(algorithm: str, topology: Topology, count: int, density: float) -> float:
    """Return the least number of bytes into the NIC of a host."""
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
