"""torch.distributed in a user's own training function: set up before it begins, through the gang's authenticated store.

Functions written for torchrun or TorchDistributor call ``init_process_group`` themselves, which torch refuses while there
is a default group. And their rendezvous, env://, is a TCPStore that listens on all interfaces and asks nobody who he is.
So ``torch.distributed.init_process_group`` is replaced, for good, as other modules keep what they import of it. While a
function runs, and only then, it is another:

1. All ranks meet, so that nobody is still making the group that is there.
2. That group is destroyed.
3. torch makes the one that was asked for, with the gang's store where env:// was asked for (or what means the same).
"""

from __future__ import annotations

import datetime
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.gang import Gang

_torchs = dist.init_process_group
_torchs_destroy = dist.destroy_process_group

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def bind_to_nic(gang: Gang) -> None:
    """Have gloo and NCCL use the NIC that the gang uses: their own guess is often another one."""
    member = gang.members[gang.rank]
    for nic, address in member.nics.items():
        if address == member.host:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = nic


def default_group(backend: str, gang: Gang, timeout: float) -> dist.ProcessGroup:
    """torch.distributed's default group of the gang's ranks, made by its authenticated store. To be destroyed."""
    bind_to_nic(gang)
    limit = datetime.timedelta(seconds=timeout)
    _torchs(backend, store=gang.store(backend), rank=gang.rank, world_size=gang.world, timeout=limit)
    group = dist.group.WORLD
    assert group is not None
    return group


@contextmanager
def process_group(
    gang: Gang, device: torch.device, timeout: float, one_node: bool = False
) -> Iterator[Callable[[], bool]]:
    """The default group and torchrun's environment variables, as long as the context lasts. Gives a function that tells
    whether this rank has communicated by torch.distributed.

    Each rank is a node of its own, as under TorchDistributor; LOCAL_RANK is the number of its GPU, which is what functions
    use it for, or 0. With ``one_node`` all of them are on one. ``timeout``: seconds, of any collective and of each wait for
    the store.
    """
    global _running
    before = dict(os.environ)
    os.environ.update(_variables(gang, device))
    if one_node:
        os.environ.update(_one_node(gang))
    if device.type == "cpu":
        for name, value in _for_lightning(1 if one_node else gang.world, gang.world if one_node else 1).items():
            os.environ.setdefault(name, value)
    bind_to_nic(gang)
    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy_process_group
    _running = running = _Running(gang, timeout)
    try:
        init_process_group(BACKENDS[device.type])
        yield lambda: running.has_communicated or _count_operations() > 0
    finally:
        _running = None
        if dist.is_initialized():
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


def _variables(gang: Gang, device: torch.device) -> dict[str, str]:
    rank, world = str(gang.rank), str(gang.world)
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(device.index or 0),
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": rank,
        "GROUP_RANK": rank,
        "GROUP_WORLD_SIZE": world,
        "MASTER_ADDR": gang.members[0].host,
        "MASTER_PORT": str(gang.members[0].port),
        "TORCHELASTIC_RUN_ID": gang.attempt,  # by which libraries know that they need not start processes
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _one_node(gang: Gang) -> dict[str, str]:
    rank, world = str(gang.rank), str(gang.world)
    return {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "NODE_RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}


def _for_lightning(nodes: int, devices: int) -> dict[str, str]:
    """Return Lightning's variables for what its Trainer and Fabric are not told: without them, each rank trains alone."""
    return {
        f"{prefix}_{name}": str(value)
        for prefix in ("PL_TRAINER", "LT")
        for name, value in (("NUM_NODES", nodes), ("DEVICES", devices))
    }


@dataclass
class _Running:
    """The function that runs in this process: its gang, the default time limit of its groups, how many it has made, whether
    it has communicated by those that are destroyed."""

    gang: Gang
    timeout: float
    groups: int = 0
    has_communicated: bool = False


_running: _Running | None = None


@functools.wraps(_torchs)
def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: datetime.timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    *more: Any,
    **options: Any,
) -> None:
    if _running is None:
        _torchs(backend, init_method, timeout, world_size, rank, store, *more, **options)
        return
    gang = _running.gang
    if rank not in (-1, gang.rank) or world_size not in (-1, gang.world):
        raise InputError(
            f"init_process_group(rank={rank}, world_size={world_size}) in rank {gang.rank} of {gang.world}: leave both"
            " out, or give RANK and WORLD_SIZE of the environment"
        )
    if dist.is_initialized():
        gang.all_gather(b"", _running.timeout)
        destroy_process_group()
    timeout = timeout or datetime.timedelta(seconds=_running.timeout)
    master = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if store is None and init_method in (None, "env://", master):
        init_method = None
        store = gang.store(f"process-group-{_running.groups}")
        store.set_timeout(timeout)
        _running.groups += 1
    _torchs(backend, init_method, timeout, gang.world, gang.rank, store, *more, **options)
    # A rank that ends soon would close connections that others are still making: gloo fails then.
    gang.all_gather(b"", _running.timeout)


@functools.wraps(_torchs_destroy)
def destroy_process_group(group: Any = None) -> None:
    if _running is not None:
        _running.has_communicated = _running.has_communicated or _count_operations() > 0
    _torchs_destroy(group)


def _count_operations() -> int:
    """Return how many collectives, sends and receives this rank has taken part in, by the groups that are there."""
    found = 0
    for group in dist.distributed_c10d._world.pg_map:
        for kind in ("cpu", "cuda"):
            with suppress(RuntimeError):  # the group has no backend for this kind
                backend: Any = group._get_backend(torch.device(kind))
                found += backend._get_sequence_number_for_group()
    return found
