"""Functions for CommDistributor, as users write them; in a module of their own, so that executors import them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from sparkdl_comm import Communicator, ddp_hooks
from sparkdl_comm.errors import DeadlineError, InputError
from sparkdl_comm.job.task import RankTask


def train_ddp(steps, lr=0.1, hook=None):
    """As in torch's tutorials; nothing of it is about sparkdl_comm, but for the name of a hook."""
    init_process_group("gloo")
    rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    if hook is not None:
        model.register_comm_hook(None, getattr(ddp_hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    features = torch.randn(30, 4)[rank::world]
    for _ in range(steps):
        optimizer.zero_grad()
        (model(features) - features.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    weights = torch.cat([parameter.flatten() for parameter in model.parameters()])
    dist.destroy_process_group()
    return rank, weights.tolist()


def stands_still_at_the_end():
    """Rank 1 does, where nobody waits for it but the driver: it has left the gang, and its task has not ended."""
    close = RankTask.close

    def close_and_stop(task):
        close(task)
        os.kill(os.getpid(), signal.SIGSTOP)

    if int(os.environ["RANK"]) == 1:
        RankTask.close = close_and_stop


def every_collective():
    comm = Communicator.current()
    assert dist.is_initialized()
    mine = torch.arange(6.0).reshape(3, 2) + 10 * comm.rank
    handle = comm.all_reduce_async(mine.clone())
    found = {
        "sum": comm.all_reduce(mine.clone()),
        "min": comm.all_reduce(mine.clone(), "min"),
        "max": comm.all_reduce(mine.clone(), op="max"),
        "from 2": comm.broadcast(mine.clone(), root=2),
        "all": comm.all_gather(mine.T),
        "scattered": comm.reduce_scatter(mine),
        "async": handle.wait(5.0),
    }
    everybodys = comm.all_gather(found["scattered"])
    comm.barrier()
    refused = 0
    for call in (lambda: comm.all_reduce(mine, "mean"), lambda: comm.reduce_scatter(mine[:2])):
        try:
            call()
        except InputError:
            refused += 1
    batches = list(comm.in_step(range(3 + comm.rank)))
    return {
        **found,
        "everybody's": everybodys,
        "refused": refused,
        "batches": batches,
        "who": (comm.rank, comm.world, comm.local_rank, comm.hosts),
        "environment": (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"]),
    }


def several_groups():
    """A group of its own, over another default one, made twice, by all that torch offers."""
    sums = []
    for options in (
        {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])},
        {"backend": "gloo", "init_method": f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"},
    ):
        dist.init_process_group(**options)
        some = dist.new_group([0, 2])
        value = torch.ones(())
        dist.all_reduce(value, group=some)
        sums.append(value.item())
    dist.destroy_process_group()
    return sums


def values():
    return {"array": np.arange(3), "text": "x", 1: (None, b"bytes")}


def rows_of(dataset, epochs):
    """All rows that the ranks saw, by epoch; and what a batch of a DataLoader is."""
    seen = [[row["id"].item() for row in dataset] for _ in range(epochs)]
    assert len(seen[0]) == len(dataset)
    batch = next(iter(DataLoader(dataset, batch_size=4)), None)
    comm = Communicator.current()
    steps = sum(1 for _ in comm.in_step(DataLoader(dataset, batch_size=2)))
    everybodys = [None] * comm.world
    dist.all_gather_object(everybodys, seen)
    workers = sorted(row["id"].item() for row in DataLoader(dataset, batch_size=None, num_workers=2))
    return {"seen": everybodys, "batch": batch, "steps": steps, "workers": workers == sorted(seen[0])}


def prints():
    print(f"rank {dist.get_rank()} printed", flush=True)
    if dist.get_rank() == 0:
        subprocess.run(["echo", "and its child"], check=True)


def a_model():
    return torch.nn.Linear(1, 1)


def fails(rank):
    """One rank raises, while the others wait for it in a collective."""
    if dist.get_rank() == rank:
        for line in range(120):
            print(f"rank {rank}, line {line}")
        sys.stdout.flush()
        subprocess.run(["echo", "from a child"], check=True)
        time.sleep(0.5)
        raise LookupError("the user's mistake")
    dist.all_reduce(torch.zeros(1))


def waits_too_short():
    comm = Communicator.current()
    if comm.rank == 0:
        try:
            comm.all_reduce_async(torch.zeros(1)).wait(0.3)
        except DeadlineError as error:
            return error.message
    time.sleep(3)
    return "nobody waited"


def waits():
    """Longer than any test, and sees nothing of what becomes of the gang."""
    time.sleep(600)


def over_the_fabric(rounds: int, serving: int) -> tuple[int, float]:
    """Rank ``serving`` has the model, a vector of zeros, to which the others add ones. Version and mean of what it has in the
    end, if it is rank 0; else of what rank 0 got last."""
    from sparkdl_comm import fabric

    params = fabric.FabricParams("async:8")
    if Communicator.current().rank == serving:
        server = fabric.register_as_server(params, np.zeros(1000, np.float32))
        server.serve(60.0)
        values, version = server.snapshot()
        return version, float(values.mean())
    worker = fabric.register_as_worker(params)
    model = np.empty(worker.elements, np.float32)
    for _ in range(rounds):
        worker.get(serving, model)
        worker.push(serving, np.ones_like(model)).wait()
    return worker.get(serving, model), float(model.mean())
