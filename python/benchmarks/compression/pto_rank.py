"""Rank program: times LARS over the layers of ResNet-50, its norms alone, and the all-gather that ps does for it.

    python pto_rank.py RENDEZVOUS_FOLDER WAYS WARMUP REPEATS STEPS SECONDS WIDTH

Where it runs is in the environment (see lab.place). WAYS: ``local``, every rank computes all norms; ``gang``,
ranks compute a part each, and gather them through rank 0; any other is the algorithm of this package that gathers them. All
ranks have the same parameters and gradients. A repeat is STEPS steps, one after another. Rank 0 prints a JSON line for each
case and way: seconds of a step on the slowest rank in each repeat, CPU seconds of all ranks for one step, and whether the
results were right after every repeat, with the same bits on all ranks.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from benchmarks.rendezvous import join_gang
from lab import Place
from lab.bench import measure

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim import LARS
from sparkdl_comm.optim.layerwise import LOCAL_NORMS, DistributedNorms, Norms
from sparkdl_comm.optim.parallel import GangRanks, Ranks

LOCALLY, BY_GANG = "local", "gang"
#: Of norms and weights, relative: what float32 norms of parts may differ by.
TOLERANCE = 1e-6


#: Blocks of the four stages.
_BLOCKS = (3, 4, 6, 3)


def resnet50(width: int = 64) -> list[tuple[int, ...]]:
    """Shapes of its 161 parameters (He et al. 2016), for 1000 classes; ``width``: channels of the first convolution."""

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
    """Ranks that gather by an algorithm of this package."""

    def __init__(self, gang: Gang, group: CollectiveGroup) -> None:
        self.rank, self.world, self._group = gang.rank, gang.world, group

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        result = tensor.new_empty((self.world, *tensor.shape))
        self._group.all_gather(tensor, result).wait()
        return result


class Bench:
    """What one rank measures, by the ways in which the ranks may share norms."""

    def __init__(self, gang: Gang, ways: dict[str, Ranks | None], width: int, steps: int, seconds: float) -> None:
        self._gang, self._ways, self._steps, self._seconds = gang, ways, steps, seconds
        random = torch.Generator().manual_seed(1)
        shapes = resnet50(width)
        self._start = [torch.randn(shape, generator=random) * 0.1 for shape in shapes]
        self._gradients = [torch.randn(shape, generator=random) * 0.01 for shape in shapes]
        self._params = [torch.nn.Parameter(value.clone()) for value in self._start]
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            parameter.grad = gradient
        self._norms = [
            (value.double().norm().item(), gradient.double().norm().item())
            for value, gradient in zip(self._start, self._gradients, strict=True)
        ]
        self._expected: list[torch.Tensor] | None = None
        whole = 4 * sum(value.numel() for value in self._start)
        #: That a case works on.
        self.nbytes = {"lars": whole, "norms": 2 * whole, "gather": 16 * len(shapes)}

    def step(self, way: str) -> tuple[float, float, bool]:
        """LARS steps from the start."""
        with torch.no_grad():
            for parameter, value in zip(self._params, self._start, strict=True):
                parameter.copy_(value)
        optimizer = LARS(self._params, lr=1.0, momentum=0.9, weight_decay=5e-5)
        optimizer.norms = self._norms_by(way)
        optimizer.step()  # makes the momentum
        taken, used = self._timed(optimizer.step)
        found = [parameter.detach() for parameter in self._params]
        if way == LOCALLY:
            moved = all(not torch.equal(one, value) for one, value in zip(found, self._start, strict=True))
            self._expected = [value.clone() for value in found]
            return taken, used, moved and self._same_bits(found)
        assert self._expected is not None, "the local way comes first"
        near = all(
            torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
            for one, other in zip(found, self._expected, strict=True)
        )
        return taken, used, self._same_bits(found) and near

    def norms(self, way: str) -> tuple[float, float, bool]:
        """The norms of all parameters and gradients, and nothing else."""
        norms, results = self._norms_by(way), []
        taken, used = self._timed(lambda: results.append(norms(self._start, self._gradients)))
        found = torch.tensor(results[-1], dtype=torch.float64)
        near = torch.allclose(found, torch.tensor(self._norms, dtype=torch.float64), rtol=TOLERANCE, atol=0.0)
        return taken, used, self._same_bits([found]) and near

    def gather(self, way: str) -> tuple[float, float, bool]:
        """An all-gather of two numbers for each parameter, as strategy ps does one per step."""
        ranks = self._ways[way]
        assert ranks is not None
        mine = torch.full((len(self._start), 2), float(ranks.rank), dtype=torch.float64)
        results: list[torch.Tensor] = []
        taken, used = self._timed(lambda: results.append(ranks.all_gather(mine)))
        wanted = torch.arange(ranks.world, dtype=torch.float64)[:, None, None].expand(ranks.world, *mine.shape)
        return taken, used, all(torch.equal(result, wanted) for result in results)

    def _norms_by(self, way: str) -> Norms:
        ranks = self._ways[way]
        return LOCAL_NORMS if ranks is None else DistributedNorms(ranks)

    def _timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Wall and CPU seconds of one call, the mean of some, which all ranks begin at about the same time."""
        self._gang.all_gather(b"", self._seconds)
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(self._steps):
            work()
        return (time.perf_counter() - begun) / self._steps, (time.process_time() - used) / self._steps

    def _same_bits(self, tensors: Sequence[torch.Tensor]) -> bool:
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.numpy().data)
        return len(set(self._gang.all_gather(digest.digest(), self._seconds))) == 1


def main() -> None:
    folder, names, *numbers = sys.argv[1:]
    warmup, repeats, steps, seconds, width = map(int, numbers)
    place = Place.here()
    torch.set_num_threads(1)
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{seconds}s")
    gang = join_gang(folder, place, seconds)
    with gang, ExitStack() as undo:
        ways: dict[str, Ranks | None] = {}
        for name in names.split(","):
            if name in (LOCALLY, BY_GANG):
                ways[name] = None if name == LOCALLY else GangRanks(gang, seconds)
            else:
                group = CollectiveGroup(gang, name, conf)
                undo.callback(group.close)
                ways[name] = GroupRanks(gang, group)
        bench = Bench(gang, ways, width, steps, seconds)
        for case, run in (("lars", bench.step), ("norms", bench.norms), ("gather", bench.gather)):
            cases = {way: lambda run=run, way=way: run(way) for way in ways if case != "gather" or way != LOCALLY}
            for way, done in measure(cases, warmup=warmup, repeats=repeats).items():
                tell(gang, {"case": case, "way": way, "bytes": bench.nbytes[case]}, done, seconds)
        gang.all_gather(b"", seconds)
    gang.wait_until_alone(seconds)


def tell(gang: Gang, result: dict[str, Any], done: list[tuple[float, float, bool]], seconds: float) -> None:
    """Prints, on rank 0, what all ranks measured in the repeats."""
    told = [json.loads(text) for text in gang.all_gather(json.dumps(done).encode(), seconds)]
    if gang.rank == 0:
        runs = list(zip(*told, strict=True))
        result["samples"] = [max(taken for taken, _, _ in run) for run in runs]
        result["cpu_seconds"] = sum(used for run in runs for _, used, _ in run) / len(runs)
        result["verified"] = all(right for run in runs for _, _, right in run)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
