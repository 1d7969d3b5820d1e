"""Rank program of the benchmark `collectives`: times collectives, of this package or gloo's.

Rank 0 prints a JSON line for each operation and size. It has the seconds of the slowest rank in each repeat and the CPU
seconds of all ranks, both per call, and whether every result was right on every rank.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from benchmarks.ranks import gloo_group, join_gang, rank_job
from lab import Place

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf

#: Elements are small integers. Their float32 sums are exact, so results are compared for equality.
PERIOD = 997
GLOO = "gloo"


@dataclass(frozen=True)
class Job:
    """Job of all ranks. ``algorithm``: of this package, or GLOO.

    A repeat is ``calls`` calls one after another, each on its own vector.

    :param sizes: bytes of a vector.
    :param timeout: seconds for an operation.
    :param block: bytes of a block of this package's pipelines. 0: the cost model's choice.
    """

    algorithm: str
    operations: Sequence[str]
    sizes: Sequence[int]
    warmup: int
    repeats: int
    calls: int
    timeout: float
    block: int = 0


class Ranks(NamedTuple):
    """Functions of a rank. ``run`` does an operation on a vector in place; rank 0 is the root.

    ``prepare`` prepares for it, and ``barrier`` waits for all ranks. ``gather`` returns numbers of all ranks.
    """

    prepare: Callable[[str, torch.Tensor], object]
    barrier: Callable[[], object]
    run: Callable[[str, torch.Tensor], object]
    gather: Callable[[Sequence[float]], list[list[float]]]


@contextmanager
def ours(folder: str, job: Job, place: Place) -> Iterator[Ranks]:
    """Join the other ranks for the job's algorithm."""
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{job.timeout}s", block=str(job.block))
    with join_gang(folder, place, job.timeout) as gang, closing(CollectiveGroup(gang, job.algorithm, conf)) as group:
        yield Ranks(
            lambda operation, vector: group.prepare(operation, vector.numel(), vector.dtype),
            lambda: gang.all_gather(b"", job.timeout),
            lambda operation, vector: group.start(operation, vector).wait(job.timeout),
            lambda numbers: [json.loads(text) for text in gang.all_gather(json.dumps(numbers).encode(), job.timeout)],
        )


@contextmanager
def gloo(folder: str, job: Job, place: Place) -> Iterator[Ranks]:
    """Join the other ranks by torch.distributed."""
    operations = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda vector: dist.broadcast(vector, 0),
        "reduce": lambda vector: dist.reduce(vector, 0),
    }

    def gather(numbers: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(place.world)]
        dist.all_gather(found, mine)
        return [each.tolist() for each in found]

    with gloo_group(folder, job.timeout):
        yield Ranks(
            lambda operation, vector: None,
            dist.barrier,
            lambda operation, vector: operations[operation](vector),
            gather,
        )


def measure(ranks: Ranks, operation: str, nbytes: int, job: Job, place: Place) -> dict[str, object]:
    """Return the result of an operation on vectors of so many bytes."""
    world, rank = place.world, place.rank
    base = (torch.arange(nbytes // 4) % PERIOD).float()
    total = world * base + world * (world - 1) / 2
    samples, verified, cpu = [], True, 0.0
    for run in range(job.warmup + job.repeats):
        # The call's number is in the data, so stale results are wrong.
        vectors = {call: base + (rank + call) for call in range(run * job.calls, (run + 1) * job.calls)}
        ranks.prepare(operation, base)
        ranks.barrier()
        begun, used = time.perf_counter(), time.process_time()
        for vector in vectors.values():
            ranks.run(operation, vector)
        taken, used = (time.perf_counter() - begun) / job.calls, (time.process_time() - used) / job.calls
        if operation == "broadcast":
            right = all(torch.equal(vector, base + call) for call, vector in vectors.items())
        else:
            right = all(torch.equal(vector, total + world * call) for call, vector in vectors.items())
            right = right or (operation == "reduce" and rank != 0)
        found = ranks.gather([taken, used, right])
        if run >= job.warmup:
            samples.append(max(taken for taken, _, _ in found))
            cpu += sum(used for _, used, _ in found) / job.repeats
            verified = verified and all(right for _, _, right in found)
    return {"case": operation, "bytes": nbytes, "samples": samples, "cpu_seconds": cpu, "verified": verified}


def main() -> None:
    folder, job, place = rank_job(Job)
    with (gloo if job.algorithm == GLOO else ours)(folder, job, place) as ranks:
        for operation in job.operations:
            for nbytes in job.sizes:
                result = measure(ranks, operation, nbytes, job, place)
                if place.rank == 0:
                    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
