"""Whole sums of gradients over emulated hosts: sparse ones, of the largest elements with feedback, beside dense ones.

Theory is the traffic into the NIC of a host at the links' rate. Traffic between ranks of one host comes on top, and no link
of the lab slows it down.
"""

from __future__ import annotations

import hashlib
import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.ranks import join_gang, rank_job, run_ranks
from lab import Lab, Place
from lab.bench import Row

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.group import CollectiveGroup, RankGroup
from sparkdl_comm.collectives.plan import part_start
from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.hitopk import HiTopK
from sparkdl_comm.compress.sums import CompressedSum, NaiveAllGather, Sparsifier
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.conf import CommConf, Compression
from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.gang import Gang
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
    """Measure the sums. Yield a row of results for each algorithm and number of elements."""
    with Lab(options.topology) as lab:
        for count in options.counts:
            for algorithm in options.algorithms:
                plan = DENSE.get(algorithm, "")
                job = Job(algorithm, plan, count, options.density, options.warmup, options.repeats, TIMEOUT)
                [result] = run_ranks(lab, Path(__file__), job, TIMEOUT)
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
    """Return the minimum number of bytes into the NIC of a host."""
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


# --- The rank program -------------------------------------------------------------------------------------------------

#: Share of the sent elements that may differ from the reference, which may add hosts up in another order.
_TOLERATED = 1e-4


@dataclass(frozen=True)
class Job:
    """Job of all ranks. ``algorithm``: hitopk or naive-ag, or the dense algorithm ``plan`` if that is not empty."""

    algorithm: str
    plan: str
    count: int
    density: float
    warmup: int
    repeats: int
    timeout: float


class Timed(Sparsifier):
    """Sparsifier that measures the seconds of selecting and of adding up."""

    selecting = adding = 0.0

    def encode(self, *args: Any) -> torch.Tensor:
        begun = time.perf_counter()
        try:
            return super().encode(*args)
        finally:
            self.selecting += time.perf_counter() - begun

    def sum_selections(self, *args: Any) -> None:
        begun = time.perf_counter()
        super().sum_selections(*args)
        self.adding += time.perf_counter() - begun


def main() -> None:
    folder, job, place = rank_job(Job)
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{job.timeout}s")
    with join_gang(folder, place, job.timeout) as gang:
        result = measure(gang, place, conf, job)
        if place.rank == 0:
            print(json.dumps(result), flush=True)


def measure(gang: Gang, place: Place, conf: CommConf, job: Job) -> dict[str, Any]:
    """Return the slowest rank's seconds in each repeat, and its seconds by part in the last one.

    ``verified``: all ranks have the same bits, which are right on rank 0.
    """
    sparsifier = Timed.of(Compression("exact", job.density), conf.compression, gang.rank)
    group: CollectiveGroup | None = None
    sums: CompressedSum | None = None
    if job.algorithm == "hitopk":
        sums = HiTopK(sparsifier, whole, RankGroup.of_gang(gang), conf, torch.device("cpu"))
    else:
        group = CollectiveGroup(gang, job.plan or "ring", conf)
        if not job.plan:
            sums = NaiveAllGather(sparsifier, whole, group, gang.world)
    samples, same, parts = [], True, {}
    given = gradient(gang.rank, job)
    vector = torch.empty_like(given)
    for run in range(job.warmup + job.repeats):
        vector.copy_(given)
        if group is not None and sums is None:
            group.prepare("all_reduce", vector.numel(), vector.dtype)
        sparsifier.selecting = sparsifier.adding = 0.0
        gang.all_gather(b"", job.timeout)
        begun = time.perf_counter()
        if sums is None:
            assert group is not None
            group.start("all_reduce", vector).wait(job.timeout)
            mine = {}
        else:
            mine = by_stages(sums, sparsifier, vector, job.density)
        seconds = time.perf_counter() - begun
        sparsifier.settle(False)  # each run begins with the same residual
        messages = gang.all_gather(json.dumps([seconds, mine, digest(vector)]).encode(), job.timeout)
        theirs = [json.loads(text) for text in messages]
        same = same and len({bits for *_, bits in theirs}) == 1
        if run >= job.warmup:
            samples.append(max(seconds for seconds, _, _ in theirs))
            parts = {name: max(of_rank[name] for _, of_rank, _ in theirs) for name in mine}
    right = gang.rank != 0 or is_right(vector, place, job)
    for opened in (group, sums):
        if opened is not None:
            opened.close()
    return {"samples": samples, "verified": same and right, "parts": parts}


def by_stages(sums: CompressedSum, sparsifier: Timed, vector: torch.Tensor, density: float) -> dict[str, float]:
    """Run the stages. Return the seconds of the parts. Waits between stages are communication."""
    marks = [time.perf_counter()]
    for _ in sums.stages(0, vector, density, 1.0):
        marks.append(time.perf_counter())
    marks.append(time.perf_counter())
    gaps = [end - begin for begin, end in zip(marks, marks[1:], strict=False)]
    found = {"select_seconds": sparsifier.selecting, "add_seconds": sparsifier.adding}
    if len(gaps) == 2:
        return {**found, "gather_seconds": gaps[1] - sparsifier.adding}
    return {
        **found,
        "scatter_inside_seconds": gaps[0] + gaps[1] - sparsifier.selecting,
        "gather_between_seconds": gaps[2],
        "gather_inside_seconds": gaps[3] - sparsifier.adding,
    }


def whole(start: int, stop: int) -> FlatRange:
    return FlatRange.of(start, stop, [0])


def gradient(rank: int, job: Job) -> torch.Tensor:
    return torch.randn(job.count, generator=torch.Generator().manual_seed(rank))


def digest(vector: torch.Tensor) -> str:
    return hashlib.blake2b(vector.numpy().data, digest_size=16).hexdigest()


def is_right(found: torch.Tensor, place: Place, job: Job) -> bool:
    """Compare with the same sum of all ranks' gradients, made here by torch.topk."""
    wanted = torch.zeros_like(found)
    grouped = place.topology.ranks_per_host if job.algorithm == "hitopk" else 1
    for first in range(0, place.world, grouped):
        total = gradient(first, job)
        for rank in range(first + 1, first + grouped):
            total += gradient(rank, job)
        if job.plan:
            wanted += total
            continue
        for slot in range(grouped):
            start, stop = (part_start(0, len(total), grouped, number) for number in (slot, slot + 1))
            entries = max(1, round(job.density * (stop - start)))
            chosen = start + total[start:stop].abs().topk(entries).indices
            wanted[chosen] += total[chosen]
    if job.plan:
        return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    close = torch.isclose(found, wanted, rtol=1e-4, atol=1e-5)
    sent = torch.count_nonzero(wanted)
    return bool(torch.count_nonzero(~close) <= _TOLERATED * sent)


if __name__ == "__main__":
    main()
