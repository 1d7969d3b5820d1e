"""Choice of a task's GPU: the GPU that Spark assigned, or otherwise the host's GPUs in turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from sparkdl_comm.errors import ConfError, SlotsError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def task_gpu(resources: Any, index_on_host: int) -> torch.device:
    """Return the GPU of this task, and make it the current device.

    :param resources: the resources that Spark's TaskContext assigned to the task, by name.
    :param index_on_host: index of the task among the tasks on its host, from 0. Selects the GPU if Spark assigns none.
    :raises SlotsError: torch sees no GPU here.
    :raises ConfError: torch does not see the GPU that Spark assigned.
    """
    assigned = resources.get("gpu")
    addresses = list(assigned.addresses) if assigned else []
    if addresses and addresses[0].startswith("MIG-") and _VISIBLE not in os.environ:
        os.environ[_VISIBLE] = addresses[0]  # a process sees one MIG instance, and must name it before CUDA starts
    if not torch.cuda.is_available():
        raise SlotsError("device='cuda', but this executor has no GPU that torch can use. Set device to cpu")
    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    device = torch.device("cuda", gpu_index(addresses, index_on_host, uuids, os.environ.get(_VISIBLE, "")))
    torch.cuda.set_device(device)
    return device


def gpu_index(addresses: Sequence[str], index_on_host: int, uuids: Sequence[str], visible: str) -> int:
    """Return torch's index of a task's GPU.

    :param addresses: names of the task's GPUs from Spark's discovery script: indices, UUIDs or names of MIG instances.
        If empty, the tasks of a host use its GPUs in turn.
    :param index_on_host: index of the task among the tasks on its host.
    :param uuids: UUIDs of the GPUs that torch sees, by torch's index. At least one.
    :param visible: CUDA_VISIBLE_DEVICES, which may have other names for the GPUs.
    :raises ConfError: torch does not see a GPU with that address.
    """
    if not addresses:
        return index_on_host % len(uuids)
    address = addresses[0]
    if address.isdecimal():
        index = int(address)
        if index < len(uuids):
            return index
    else:
        visible_names = [name.strip() for name in visible.split(",") if name.strip()]
        for names in (visible_names, [f"GPU-{uuid.removeprefix('GPU-')}" for uuid in uuids]):
            for index, name in enumerate(names[: len(uuids)]):
                if name.partition("-")[2] and address.startswith(name):
                    return index
    raise ConfError(
        f"Spark assigned the GPU {address}, but torch sees {', '.join(uuids)}, with {_VISIBLE}={visible or 'not set'}."
        " Let spark.executor.resource.gpu.discoveryScript name GPUs as executors see them. A Python worker cannot switch"
        " between MIG instances: with MIG, set spark.python.worker.reuse=false"
    )
