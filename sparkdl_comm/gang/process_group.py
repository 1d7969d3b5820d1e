"""Setup of torch.distributed for a user's training function, through the gang's authenticated store.

Functions written for torchrun or TorchDistributor call ``init_process_group`` themselves, which torch refuses if a
default group exists. Their rendezvous, env://, is a TCPStore that listens on all interfaces without authentication. So
``torch.distributed.init_process_group`` is replaced permanently, as other modules keep references to it. Only while a
function runs does the replacement behave differently:

1. All ranks meet, so that no rank is still creating the existing group.
2. The existing group is destroyed.
3. torch creates the requested group, with the gang's store in place of env:// or its equivalents.
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

_torch_init = dist.init_process_group
_torch_destroy = dist.destroy_process_group

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def bind_to_nic(gang: Gang) -> None:
    """Make gloo and NCCL use the gang's NIC: their own choice is often another one."""
    member = gang.members[gang.rank]
    for nic, address in member.nics.items():
        if address == member.host:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = nic


def default_group(backend: str, gang: Gang, timeout: float) -> dist.ProcessGroup:
    """Return torch.distributed's default group of the gang's ranks, created by its authenticated store. The caller
    destroys it.
    """
    bind_to_nic(gang)
    limit = datetime.timedelta(seconds=timeout)
    _torch_init(backend, store=gang.store(backend), rank=gang.rank, world_size=gang.world, timeout=limit)
    group = dist.group.WORLD
    assert group is not None
    return group


@contextmanager
def process_group(
    gang: Gang, device: torch.device, timeout: float, one_node: bool = False
) -> Iterator[Callable[[], bool]]:
    """Provide the default group and torchrun's environment variables, as a context.

    It yields a function that returns whether this rank has communicated by torch.distributed. Each rank is a node, as
    under TorchDistributor. LOCAL_RANK is the number of the rank's GPU, which is what functions use it for, or 0.

    :param timeout: seconds for any collective, and for each wait for the store.
    :param one_node: all ranks are on one node instead.
    """
    global _user_function
    saved_environment = dict(os.environ)
    os.environ.update(_variables(gang, device))
    if one_node:
        os.environ.update(_one_node_variables(gang))
    if device.type == "cpu":
        for name, value in _lightning_variables(1 if one_node else gang.world, gang.world if one_node else 1).items():
            os.environ.setdefault(name, value)
    bind_to_nic(gang)
    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy_process_group
    _user_function = running = _UserFunction(gang, timeout)
    try:
        init_process_group(BACKENDS[device.type])
        yield lambda: running.has_communicated or _count_operations() > 0
    finally:
        _user_function = None
        if dist.is_initialized():
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(saved_environment)


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
        "TORCHELASTIC_RUN_ID": gang.attempt,  # tells libraries not to start processes
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _one_node_variables(gang: Gang) -> dict[str, str]:
    rank, world = str(gang.rank), str(gang.world)
    return {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "NODE_RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}


def _lightning_variables(nodes: int, devices: int) -> dict[str, str]:
    """Return the variables for settings that the user does not pass to Lightning's Trainer and Fabric.

    Without the variables, each rank would train alone.
    """
    return {
        f"{prefix}_{name}": str(value)
        for prefix in ("PL_TRAINER", "LT")
        for name, value in (("NUM_NODES", nodes), ("DEVICES", devices))
    }


@dataclass
class _UserFunction:
    """State of the user's function that runs in this process.

    :param timeout: default time limit of its groups, in seconds.
    :param groups: number of groups that it has created.
    :param has_communicated: it has communicated by groups that are destroyed now.
    """

    gang: Gang
    timeout: float
    groups: int = 0
    has_communicated: bool = False


_user_function: _UserFunction | None = None


@functools.wraps(_torch_init)
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
    if _user_function is None:
        _torch_init(backend, init_method, timeout, world_size, rank, store, *more, **options)
        return
    gang = _user_function.gang
    if rank not in (-1, gang.rank) or world_size not in (-1, gang.world):
        raise InputError(
            f"init_process_group(rank={rank}, world_size={world_size}) in rank {gang.rank} of {gang.world}. Leave both"
            " out, or pass RANK and WORLD_SIZE of the environment."
        )
    if dist.is_initialized():
        gang.all_gather(b"", _user_function.timeout)
        destroy_process_group()
    timeout = timeout or datetime.timedelta(seconds=_user_function.timeout)
    master = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if store is None and init_method in (None, "env://", master):
        init_method = None
        store = gang.store(f"process-group-{_user_function.groups}")
        store.set_timeout(timeout)
        _user_function.groups += 1
    _torch_init(backend, init_method, timeout, gang.world, gang.rank, store, *more, **options)
    # A rank that ends soon would close connections that others are still opening, and gloo would fail.
    gang.all_gather(b"", _user_function.timeout)


@functools.wraps(_torch_destroy)
def destroy_process_group(group: Any = None) -> None:
    if _user_function is not None:
        _user_function.has_communicated = _user_function.has_communicated or _count_operations() > 0
    _torch_destroy(group)


def _count_operations() -> int:
    """Return the number of collectives, sends and receives of this rank in the existing groups."""
    found = 0
    for group in dist.distributed_c10d._world.pg_map:
        for kind in ("cpu", "cuda"):
            with suppress(RuntimeError):  # the group has no backend for this kind
                backend: Any = group._get_backend(torch.device(kind))
                found += backend._get_sequence_number_for_group()
    return found
