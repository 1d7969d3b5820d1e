"""Rank program of the benchmark `collectives`: times collectives of this package over the lab's links.

    python rank.py RENDEZVOUS_FOLDER ALGORITHM OPERATIONS WARMUP REPEATS CALLS SECONDS BLOCK BYTES...

The environment says which rank this is (see lab.place). A repeat is CALLS calls one after another, each on its own
vector. Rank 0 prints a JSON line for each operation and size. It has the seconds of the slowest rank in each repeat and
the CPU seconds of all ranks, both per call, and whether every result was right on every rank.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from benchmarks.rendezvous import join_gang
from lab import Place

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang

#: Elements are small integers. Their float32 sums are exact, so results are compared for equality.
PERIOD = 997


def main() -> None:
    folder, algorithm, operations, *numbers = sys.argv[1:]
    warmup, repeats, calls = map(int, numbers[:3])
    seconds, block, *sizes = map(float, numbers[3:])
    place = Place.here()
    torch.set_num_threads(1)
    conf = CommConf.from_mapping({}, topology=str(place.topology), timeout=f"{seconds}s", block=f"{block:.0f}")
    gang = join_gang(folder, place, seconds)
    with gang:
        group = CollectiveGroup(gang, algorithm, conf)
        for operation in operations.split(","):
            for nbytes in map(int, sizes):
                measure(gang, group, operation, nbytes, (warmup, repeats, calls), seconds)
        group.close()
        gang.wait_until_alone(seconds)


def measure(
    gang: Gang, group: CollectiveGroup, operation: str, nbytes: int, counts: tuple[int, int, int], seconds: float
) -> None:
    warmup, repeats, calls = counts
    base = (torch.arange(nbytes // 4) % PERIOD).float()
    world, rank = gang.world, gang.rank
    total = world * base + world * (world - 1) / 2
    samples, verified, cpu = [], True, 0.0
    for run in range(warmup + repeats):
        # The call's number is in the data, so stale results are wrong.
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


if __name__ == "__main__":
    main()
