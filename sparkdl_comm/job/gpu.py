"""The GPU of a task: the one that Spark assigned to it, else one of its host's in turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from sparkdl_comm.errors import ConfError, SlotsError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def task_gpu(resources: Any, place: int) -> torch.device:
    """Return the GPU of this task, and make it the current one.

    :param resources: what Spark's TaskContext says that the task was given, by name.
    :param place: the task's number among those on its host, from 0, which chooses where Spark assigns no GPUs.
    :raises SlotsError: torch sees no GPU here.
    :raises ConfError: torch does not see the GPU that Spark assigned.
    """
    assigned = resources.get("gpu")
    addresses = list(assigned.addresses) if assigned else []
    if addresses and addresses[0].startswith("MIG-") and _VISIBLE not in os.environ:
        os.environ[_VISIBLE] = addresses[0]  # CUDA sees one MIG instance per process; before torch asks it for any
    if not torch.cuda.is_available():
        raise SlotsError("device='cuda', but this executor has no GPU that torch can use. Set device to cpu")
    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    device = torch.device("cuda", gpu_index(addresses, place, uuids, os.environ.get(_VISIBLE, "")))
    torch.cuda.set_device(device)
    return device


def gpu_index(addresses: Sequence[str], place: int, uuids: Sequence[str], visible: str) -> int:
    """Return torch's number of a task's GPU.

    :param addresses: as Spark's discovery script names the task's GPUs: numbers, UUIDs or names of MIG instances. Without
        any, tasks of one host take its GPUs in turn.
    :param place: the task's number among those on its host.
    :param uuids: of the GPUs that torch sees, by torch's number; of at least one.
    :param visible: CUDA_VISIBLE_DEVICES, which may name them otherwise.
    :raises ConfError: torch does not see a GPU of that address.
    """
    if not addresses:
        return place % len(uuids)
    address = addresses[0]
    if address.isdecimal():
        index = int(address)
        if index < len(uuids):
            return index
    else:
        shown = [name.strip() for name in visible.split(",") if name.strip()]
        for names in (shown, [f"GPU-{uuid.removeprefix('GPU-')}" for uuid in uuids]):
            for index, name in enumerate(names[: len(uuids)]):
                if name.partition("-")[2] and address.startswith(name):
                    return index
    raise ConfError(
        f"Spark assigned the GPU {address}, but torch sees {', '.join(uuids)}, with {_VISIBLE}={visible or 'not set'}."
        " Have spark.executor.resource.gpu.discoveryScript name GPUs as executors see them. A Python worker cannot change"
        " between MIG instances: set spark.python.worker.reuse=false"
    )
