"""One rank of the benchmark `compression`: times sums of gradients over the lab's links.

    python sum_rank.py RENDEZVOUS_FOLDER JSON

Where it runs is in the environment (see lab.place). Rank 0 prints a JSON line: how long the slowest rank took in
each repeat; the seconds of its parts, of the slowest rank in the last one; and whether all ranks had the same bits, which were
right on rank 0.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch
from benchmarks.rendezvous import join_gang
from lab import Place

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.plan import part_start
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.hitopk import HiTopK
from sparkdl_comm.compress.sums import CompressedSum, NaiveAllGather, Sparsifier
from sparkdl_comm.conf import CommConf, Compression
from sparkdl_comm.gang.gang import Gang

#: Of whose positions so many may differ from the reference: sums over hosts may be added in another order there.
_TOLERATED = 1e-4


class Timed(Sparsifier):
    """Tells how long it selected, and added up."""

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
    folder, asked = sys.argv[1], json.loads(sys.argv[2])
    place, seconds = Place.here(), asked["timeout"]
    torch.set_num_threads(1)
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{seconds}s")
    gang = join_gang(folder, place, seconds)
    with gang:
        result = measure(gang, place, conf, asked)
        if place.rank == 0:
            print(json.dumps(result), flush=True)
        gang.wait_until_alone(seconds)


def measure(gang: Gang, place: Place, conf: CommConf, asked: dict[str, Any]) -> dict[str, Any]:
    sparsifier = Timed.of(Compression("exact", asked["density"]), conf.compression, gang.rank)
    group = None
    if asked["algorithm"] != "hitopk":
        group = CollectiveGroup(gang, asked["plan"] or "ring", conf)
    sums: CompressedSum | None = None
    if asked["algorithm"] == "hitopk":
        sums = HiTopK(sparsifier, whole, RankGroup.of_gang(gang), conf, torch.device("cpu"))
    elif not asked["plan"]:
        assert group is not None
        sums = NaiveAllGather(sparsifier, whole, group, gang.world)
    samples, same, parts = [], True, {}
    given = gradient(gang.rank, asked)
    vector = torch.empty_like(given)
    for run in range(asked["warmup"] + asked["repeats"]):
        vector.copy_(given)
        if group is not None and sums is None:
            group.prepare("all_reduce", vector.numel(), vector.dtype)
        sparsifier.selecting = sparsifier.adding = 0.0
        gang.all_gather(b"", asked["timeout"])
        begun = time.perf_counter()
        if sums is None:
            assert group is not None
            group.start("all_reduce", vector).wait(asked["timeout"])
            mine = {}
        else:
            mine = by_stages(sums, sparsifier, vector, asked["density"])
        taken = time.perf_counter() - begun
        sparsifier.settle(False)  # each run is to begin with the same
        told = gang.all_gather(json.dumps([taken, mine, digest(vector)]).encode(), asked["timeout"])
        theirs = [json.loads(text) for text in told]
        same = same and len({bits for *_, bits in theirs}) == 1
        if run >= asked["warmup"]:
            samples.append(max(seconds for seconds, _, _ in theirs))
            parts = {name: max(theirs_of[name] for _, theirs_of, _ in theirs) for name in mine}
    right = gang.rank != 0 or is_right(vector, place, asked)
    for opened in (group, sums):
        if opened is not None:
            opened.close()
    return {"samples": samples, "verified": same and right, "parts": parts}


def by_stages(sums: CompressedSum, sparsifier: Timed, vector: torch.Tensor, density: float) -> dict[str, float]:
    """Runs the stages; returns the seconds of the parts: what is waited for in between stages is communication."""
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


def gradient(rank: int, asked: dict[str, Any]) -> torch.Tensor:
    return torch.randn(asked["count"], generator=torch.Generator().manual_seed(asked["seed"] + rank))


def digest(vector: torch.Tensor) -> str:
    return hashlib.blake2b(vector.numpy().data, digest_size=16).hexdigest()


def is_right(found: torch.Tensor, place: Place, asked: dict[str, Any]) -> bool:
    """Compares with the same sum made here of all ranks' gradients, by torch.topk."""
    wanted = torch.zeros_like(found)
    dense, slots = bool(asked["plan"]), place.topology.ranks_per_host
    grouped = slots if asked["algorithm"] == "hitopk" else 1
    for first in range(0, place.world, grouped):
        total = gradient(first, asked)
        for rank in range(first + 1, first + grouped):
            total += gradient(rank, asked)
        if dense:
            wanted += total
            continue
        for slot in range(grouped):
            start, stop = (part_start(0, len(total), grouped, number) for number in (slot, slot + 1))
            entries = max(1, round(asked["density"] * (stop - start)))
            chosen = start + total[start:stop].abs().topk(entries).indices
            wanted[chosen] += total[chosen]
    if dense:
        return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    close = torch.isclose(found, wanted, rtol=1e-4, atol=1e-5)
    sent = torch.count_nonzero(wanted)
    return bool(torch.count_nonzero(~close) <= _TOLERATED * sent)


if __name__ == "__main__":
    main()
