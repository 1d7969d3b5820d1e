"""One rank of bench_collectives.py: times collectives of this package over the lab's links.

    python collective_rank.py RENDEZVOUS_FOLDER ALGORITHM OPERATIONS WARMUP REPEATS CALLS SECONDS BLOCK BYTES...

Where it runs is in the environment (see sparkdl_comm.lab.place). In a repeat a rank makes CALLS calls, each on a vector of its
own, after the one before it is complete there. Rank 0 prints a JSON line for each operation and size: how long the slowest
rank took in each repeat, and the CPU seconds of all ranks, both for one call; and whether all ranks had the right results
after every one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.lab import Place

#: Integers, and small: their float32 sums are exact, so that results can be compared for equality.
PERIOD = 997


def main() -> None:
    folder, algorithm, operations, *numbers = sys.argv[1:]
    warmup, repeats, calls = map(int, numbers[:3])
    seconds, block, *sizes = map(float, numbers[3:])
    place = Place.here()
    torch.set_num_threads(1)
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{seconds}s", block=f"{block:.0f}")
    gang = Gang.join(
        rank=place.rank,
        world=place.world,
        host=place.control,
        exchange=exchange_by_files(Path(folder), place, seconds),
        secret=hashlib.sha256(folder.encode()).digest(),
        attempt="bench",
        timeout=seconds,
        rails=place.addresses,
    )
    with gang:
        group = CollectiveGroup(gang, algorithm, conf)
        for operation in operations.split(","):
            for nbytes in map(int, sizes):
                measure(gang, group, operation, nbytes, (warmup, repeats, calls), seconds)
        group.close()
        gang.outlast(seconds)


def measure(
    gang: Gang, group: CollectiveGroup, operation: str, nbytes: int, counts: tuple[int, int, int], seconds: float
) -> None:
    warmup, repeats, calls = counts
    base = (torch.arange(nbytes // 4) % PERIOD).float()
    world, rank = gang.world, gang.rank
    total = world * base + world * (world - 1) / 2
    samples, verified, cpu = [], True, 0.0
    for run in range(warmup + repeats):
        # The call's number is in the data: what an earlier one left behind is wrong.
        vectors = {call: base + (rank + call) for call in range(run * calls, (run + 1) * calls)}
        group.prepare(operation, base.numel(), base.dtype)
        gang.all_gather(b"", seconds)
        begun, used = time.perf_counter(), time.process_time()
        for vector in vectors.values():
            group.start(operation, vector).wait(seconds)
        taken, used = (time.perf_counter() - begun) / calls, (time.process_time() - used) / calls
        if operation == "broadcast":
            right = all(torch.equal(vector, base + call) for call, vector in vectors.items())
        else:
            right = all(torch.equal(vector, total + world * call) for call, vector in vectors.items())
            right = right or (operation == "reduce" and rank != 0)
        told = [json.loads(text) for text in gang.all_gather(json.dumps([taken, used, right]).encode(), seconds)]
        if run >= warmup:
            samples.append(max(taken for taken, _, _ in told))
            cpu += sum(used for _, used, _ in told) / repeats
            verified = verified and all(right for _, _, right in told)
    if rank == 0:
        result = {"case": operation, "bytes": nbytes, "samples": samples, "cpu_seconds": cpu, "verified": verified}
        print(json.dumps(result), flush=True)


def exchange_by_files(folder: Path, place: Place, seconds: float) -> Callable[[str], list[str]]:
    """What the rendezvous at the driver does in training: every rank learns what each of them said."""

    def exchange(text: str) -> list[str]:
        (folder / f"{place.rank}.new").write_text(text)
        (folder / f"{place.rank}.new").rename(folder / f"{place.rank}.json")
        paths = [folder / f"{rank}.json" for rank in range(place.world)]
        deadline = time.monotonic() + seconds
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline:
                raise DeadlineError(f"not all of {place.world} ranks wrote to {folder}")
            time.sleep(0.01)
        return [path.read_text() for path in paths]

    return exchange


if __name__ == "__main__":
    main()
