"""Process groups of torch.distributed that meet through the gang's store."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from sparkdl_comm.gang.gang import Gang
from tests.unit.gang_helpers import SECONDS, Crew


def two_groups(gang: Gang, pipe) -> None:
    for name in ("first", "second"):
        store = gang.store(name)
        dist.init_process_group(
            backend="gloo",
            store=store,
            rank=gang.rank,
            world_size=gang.world,
            timeout=timedelta(seconds=SECONDS),
        )
        tensor = torch.arange(5, dtype=torch.float64) * (gang.rank + 1)
        dist.all_reduce(tensor)
        dist.barrier()
        part = dist.new_group([0, 2])
        among = torch.tensor([float(gang.rank)])
        if gang.rank in (0, 2):
            dist.all_reduce(among, group=part)
        names: list = [None] * gang.world
        dist.all_gather_object(names, f"rank {gang.rank}")
        pipe.send((tensor.tolist(), among.item(), names, store.num_keys() > 0))
        dist.destroy_process_group()
    gang.close()
    pipe.send("out")


def test_gloo_in_three_processes_twice(tmp_path):
    with Crew(3, tmp_path, two_groups) as crew:
        for _ in range(2):
            for rank in range(3):
                names = [f"rank {other}" for other in range(3)]
                among = 1.0 if rank == 1 else 2.0
                assert crew.hear(rank, 60.0) == ([0.0, 6.0, 12.0, 18.0, 24.0], among, names, True)
        for rank in range(3):
            assert crew.hear(rank) == "out"


def group_that_waits(gang: Gang, pipe) -> None:
    gang.on_failure(lambda failure: pipe.send(("failure", failure.rank)))
    if gang.rank == 2:
        pipe.send("waiting")
        threading.Event().wait(60)
    try:
        dist.init_process_group(backend="gloo", store=gang.store("x"), rank=gang.rank, world_size=gang.world)
    except RuntimeError as exc:
        pipe.send((type(exc).__name__, exc.rank))
    threading.Event().wait(60)


def test_init_process_group_ends_when_a_rank_dies(tmp_path):
    with Crew(3, tmp_path, group_that_waits) as crew:
        assert crew.hear(2) == "waiting"
        os.kill(crew.processes[2].pid, signal.SIGKILL)
        for rank in (0, 1):
            heard = {crew.hear(rank, 10.0), crew.hear(rank, 10.0)}
            assert heard == {("failure", 2), ("RankLostError", 2)}
