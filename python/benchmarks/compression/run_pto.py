"""The parallel tensor operator of the CommLib paper: LARS over the 161 layers of ResNet-50. Every rank computes all norms,
or each computes a part and the ranks all-gather them.

    python python/benchmarks compression/pto --topology star:8 --loopback --json

Cases: `lars`, a step of the optimizer; `norms`, the norms of parameters and gradients alone, which the paper times (11 ms,
and 7 ms in parts on 128 GPUs, section 5.4); `gather`, the all-gather of strategy ps in a step of LARS or LAMB, 16 bytes
per layer. Algorithms: `local`; `pto-gang`, gathered through rank 0 as in fits; `pto-ring`, by this package's ring.
Verified: from the same weights, all algorithms lead to the same weights up to rounding, with the same bits on all ranks.

Seconds are the slowest rank's. Each rank has one thread. With fewer cores than ranks, ranks wait for each other's norms
when each computes all of them. So on two cores `--topology star:2` says more about that than star:8.
"""

from __future__ import annotations

import hashlib
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.command import Note
from benchmarks.ranks import join_gang, rank_job, run_ranks
from lab import Lab
from lab.arguments import topology_of
from lab.bench import Row, measure

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim import LARS
from sparkdl_comm.optim.layerwise import LOCAL_NORMS, DistributedNorms, Norms
from sparkdl_comm.optim.parallel import GangRanks, Ranks

RATE_MBIT = 200.0
TIMEOUT = 300.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    topology = options.topology.with_rates(round(RATE_MBIT * 1e6))
    job = Job(options.warmup, options.repeats, TIMEOUT, **({"steps": 2, "width": 4} if options.quick else {}))
    with Lab.loopback(options.topology) if options.loopback else Lab(topology) as cluster:
        results = run_ranks(cluster, Path(__file__), job, TIMEOUT)
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


# --- The rank program -------------------------------------------------------------------------------------------------

#: Algorithm by which every rank computes all norms. With the other algorithms each rank computes a part and gathers the rest.
LOCALLY = "local"
#: Relative tolerance for norms and weights: float32 norms of parts are rounded otherwise.
TOLERANCE = 1e-6
#: Blocks of the network's four stages.
_BLOCKS = (3, 4, 6, 3)


@dataclass(frozen=True)
class Job:
    """Job of all ranks. ``steps``: steps of a repeat. ``width``: channels of the network's first convolution."""

    warmup: int
    repeats: int
    timeout: float
    steps: int = 10
    width: int = 64


def resnet50(width: int = 64) -> list[tuple[int, ...]]:
    """Return the shapes of ResNet-50's 161 parameters (He et al. 2016), for 1000 classes."""

    def convolution(out: int, into: int, kernel: int) -> list[tuple[int, ...]]:
        return [(out, into, kernel, kernel), (out,), (out,)]  # and the norm after it

    shapes, into = convolution(width, 3, 7), width
    for stage, blocks in enumerate(_BLOCKS):
        inner = width << stage
        for block in range(blocks):
            shapes += [*convolution(inner, into, 1), *convolution(inner, inner, 3), *convolution(4 * inner, inner, 1)]
            if block == 0:
                shapes += convolution(4 * inner, into, 1)
            into = 4 * inner
    return [*shapes, (1000, into), (1000,)]


class GroupRanks:
    """Ranks that gather by a collective of this package."""

    def __init__(self, gang: Gang, group: CollectiveGroup) -> None:
        self.rank, self.world, self._group = gang.rank, gang.world, group

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        result = tensor.new_empty((self.world, *tensor.shape))
        self._group.all_gather(tensor, result).wait()
        return result


class Bench:
    """Cases of one rank. Each takes an algorithm, and returns the seconds of a step and whether the result is right."""

    def __init__(self, gang: Gang, ways: dict[str, Ranks | None], job: Job) -> None:
        self._gang, self._ways, self._job = gang, ways, job
        random = torch.Generator().manual_seed(1)
        shapes = resnet50(job.width)
        self._start = [torch.randn(shape, generator=random) * 0.1 for shape in shapes]
        self._gradients = [torch.randn(shape, generator=random) * 0.01 for shape in shapes]
        self._params = [torch.nn.Parameter(value.clone()) for value in self._start]
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            parameter.grad = gradient
        self._norms = [
            (value.double().norm().item(), gradient.double().norm().item())
            for value, gradient in zip(self._start, self._gradients, strict=True)
        ]
        self._expected: list[torch.Tensor] = []
        whole = 4 * sum(value.numel() for value in self._start)
        #: Bytes of each case.
        self.nbytes = {"lars": whole, "norms": 2 * whole, "gather": 16 * len(shapes)}

    def lars(self, way: str) -> tuple[float, bool]:
        """Time LARS steps from the initial weights. The local algorithm comes first."""
        with torch.no_grad():
            for parameter, value in zip(self._params, self._start, strict=True):
                parameter.copy_(value)
        optimizer = LARS(self._params, lr=1.0, momentum=0.9, weight_decay=5e-5)
        optimizer.norms = self._norms_by(way)
        optimizer.step()  # makes the momentum
        seconds = self._timed(optimizer.step)
        found = [parameter.detach() for parameter in self._params]
        if way == LOCALLY:
            is_right = all(not torch.equal(one, value) for one, value in zip(found, self._start, strict=True))
            self._expected = [value.clone() for value in found]
        else:
            is_right = all(
                torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
                for one, other in zip(found, self._expected, strict=True)
            )
        return seconds, self._same_bits(found) and is_right

    def norms(self, way: str) -> tuple[float, bool]:
        """Time the norms of all parameters and gradients."""
        norms, results = self._norms_by(way), []
        seconds = self._timed(lambda: results.append(norms(self._start, self._gradients)))
        found = torch.tensor(results[-1], dtype=torch.float64)
        near = torch.allclose(found, torch.tensor(self._norms, dtype=torch.float64), rtol=TOLERANCE, atol=0.0)
        return seconds, self._same_bits([found]) and near

    def gather(self, way: str) -> tuple[float, bool]:
        """Time an all-gather of two numbers for each parameter."""
        ranks = self._ways[way]
        assert ranks is not None
        mine = torch.full((len(self._start), 2), float(ranks.rank), dtype=torch.float64)
        results: list[torch.Tensor] = []
        seconds = self._timed(lambda: results.append(ranks.all_gather(mine)))
        wanted = torch.arange(ranks.world, dtype=torch.float64)[:, None, None].expand(ranks.world, *mine.shape)
        return seconds, all(torch.equal(result, wanted) for result in results)

    def _norms_by(self, way: str) -> Norms:
        ranks = self._ways[way]
        return LOCAL_NORMS if ranks is None else DistributedNorms(ranks)

    def _timed(self, work: Callable[[], object]) -> float:
        """Return the mean seconds of the job's steps, which all ranks begin at about the same time."""
        self._gang.all_gather(b"", self._job.timeout)
        begun = time.perf_counter()
        for _ in range(self._job.steps):
            work()
        return (time.perf_counter() - begun) / self._job.steps

    def _same_bits(self, tensors: Sequence[torch.Tensor]) -> bool:
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.numpy().data)
        return len(set(self._gang.all_gather(digest.digest(), self._job.timeout))) == 1


def main() -> None:
    """Print a JSON line for each case and algorithm, on rank 0. All ranks have the same parameters and gradients."""
    folder, job, place = rank_job(Job)
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{job.timeout}s")
    with join_gang(folder, place, job.timeout) as gang, closing(CollectiveGroup(gang, "ring", conf)) as group:
        ways: dict[str, Ranks | None] = {
            LOCALLY: None,
            "gang": GangRanks(gang, job.timeout),
            "ring": GroupRanks(gang, group),
        }
        bench = Bench(gang, ways, job)
        for case, run in (("lars", bench.lars), ("norms", bench.norms), ("gather", bench.gather)):
            cases = {way: lambda run=run, way=way: run(way) for way in ways if case != "gather" or way != LOCALLY}
            for way, done in measure(cases, warmup=job.warmup, repeats=job.repeats).items():
                report(gang, {"case": case, "way": way, "bytes": bench.nbytes[case]}, done, job.timeout)
        gang.all_gather(b"", job.timeout)


def report(gang: Gang, result: dict[str, object], done: list[tuple[float, bool]], timeout: float) -> None:
    """Print the repeats of all ranks, on rank 0."""
    of_ranks = [json.loads(text) for text in gang.all_gather(json.dumps(done).encode(), timeout)]
    if gang.rank == 0:
        repeats = list(zip(*of_ranks, strict=True))
        result["samples"] = [max(seconds for seconds, _ in repeat) for repeat in repeats]
        result["verified"] = all(is_right for repeat in repeats for _, is_right in repeat)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
