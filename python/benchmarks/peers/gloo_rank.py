"""Rank program of the benchmark `peers`: times torch.distributed's gloo backend.

    python gloo_rank.py RENDEZVOUS_FILE OPERATIONS WARMUP REPEATS CALLS SECONDS BYTES...

OPERATIONS is a comma-separated list of all_reduce, broadcast and reduce. SECONDS is the deadline of each operation. The
environment has RANK, WORLD_SIZE, and GLOO_SOCKET_IFNAME, the name of the network interface. A repeat is CALLS calls one
after another. Rank 0 prints a JSON line for each operation and size. It has the seconds of the slowest rank in each
repeat and the CPU seconds of all ranks, both per call, and whether every result was right on every rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection

import torch
import torch.distributed as dist
from benchmarks.rendezvous import gloo_group

#: Elements are small integers. Their float32 sums are exact, so results are compared for equality.
PERIOD = 997


def main() -> None:
    rendezvous, operations, *numbers = sys.argv[1:]
    warmup, repeats, calls = map(int, numbers[:3])
    torch.set_num_threads(1)
    with gloo_group(rendezvous, float(numbers[3])):
        for nbytes in map(int, numbers[4:]):
            for name in operations.split(","):
                measure(name, nbytes, warmup, repeats, calls)


def measure(name: str, nbytes: int, warmup: int, repeats: int, calls: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    base = (torch.arange(nbytes // 4) % PERIOD).float()
    # The call's number is in the data, so stale results are wrong.
    done = [once(name, base, range(run * calls, (run + 1) * calls), rank, world) for run in range(warmup + repeats)][
        warmup:
    ]
    samples = torch.tensor([taken for taken, _, _ in done], dtype=torch.float64)
    used = torch.tensor(sum(used for _, used, _ in done) / len(done), dtype=torch.float64)
    verified = torch.tensor([int(all(right for _, _, right in done))])
    dist.all_reduce(samples, dist.ReduceOp.MAX)
    dist.all_reduce(used)
    dist.all_reduce(verified, dist.ReduceOp.MIN)
    if rank == 0:
        result = {
            "case": name.replace("_", ""),
            "bytes": nbytes,
            "samples": samples.tolist(),
            "cpu_seconds": used.item(),
            "verified": bool(verified.item()),
        }
        print(json.dumps(result), flush=True)


def once(name: str, base: torch.Tensor, calls: range, rank: int, world: int) -> tuple[float, float, bool]:
    """Run calls once. Return seconds, CPU seconds, and whether this rank's results are right. Rank 0 is the root."""
    if name == "broadcast":
        buffers = {call: base + call if rank == 0 else torch.zeros_like(base) for call in calls}
        taken = timed(lambda buffer: dist.broadcast(buffer, 0), buffers.values())
        return *taken, all(torch.equal(buffer, base + call) for call, buffer in buffers.items())
    buffers = {call: base + (rank + call) for call in calls}
    taken = timed(dist.all_reduce if name == "all_reduce" else lambda buffer: dist.reduce(buffer, 0), buffers.values())
    if name == "reduce" and rank != 0:
        return *taken, True
    rest = world * (world - 1) / 2
    return *taken, all(torch.equal(buffer, world * (base + call) + rest) for call, buffer in buffers.items())


def timed(operation: Callable[[torch.Tensor], object], buffers: Collection[torch.Tensor]) -> tuple[float, float]:
    """Return an operation's mean seconds and CPU seconds on the buffers. The first call follows a barrier."""
    dist.barrier()
    begun, used = time.perf_counter(), time.process_time()
    for buffer in buffers:
        operation(buffer)
    return (time.perf_counter() - begun) / len(buffers), (time.process_time() - used) / len(buffers)


if __name__ == "__main__":
    main()
