"""What ranks of the driver's machine run, in a module that they import without those that only the tests need."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sparkdl_comm.collectives.communicator import Communicator
from sparkdl_comm.optim import LARS


def who() -> Any:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
    everybodys: list[Any] = [None, None]
    dist.all_gather_object(everybodys, ([os.environ[name] for name in names], os.getpid()))
    print("hello from", dist.get_rank())
    return everybodys


def trains(way: str) -> dict[str, str]:
    """A step of training. Ranks communicate in this ``way``, if it is one. Returns what Lightning reads."""
    lightning = {name: os.environ[name] for name in os.environ if name.startswith(("PL_", "LT_"))}
    if way.startswith("own group"):
        dist.init_process_group("gloo")
    model: Any = torch.nn.Linear(2, 1)
    if way == "ddp":
        model = DistributedDataParallel(model)
    model(torch.ones(3, 2)).sum().backward()
    if way == "own group":
        dist.all_reduce(model.weight.grad)
    elif way == "communicator":
        Communicator.current().all_reduce(torch.ones(2))
    if way.startswith("own group"):
        dist.destroy_process_group()
    return lightning


def steps_lars() -> Any:
    """Both ranks' parameters after a step: with norms computed by each, and dealt out."""
    communicator, ends = Communicator.current(), []
    for parallel in (False, communicator):
        torch.manual_seed(1)
        params = [torch.nn.Parameter(torch.randn(count)) for count in (3, 40_000, 5)]
        for parameter in params:
            parameter.grad = torch.randn_like(parameter)
        LARS(params, lr=0.1, trust_coefficient=1.0, parallel=parallel).step()
        ends.append(communicator.all_gather(torch.cat([parameter.detach() for parameter in params])))
    return ends


def fails() -> None:
    if dist.get_rank() == 1:
        print("the last words")
        raise LookupError("mine")
    dist.barrier()


def is_killed() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def sleeps() -> None:
    Path(f"rank-{dist.get_rank()}").touch()
    time.sleep(600)
