"""Exchange of small JSON values and tensors between all ranks, through the gang's store, between steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import allocate, describe, raw

#: Maximum bytes per round, of each rank and of all ranks together: rank 0 holds them in memory.
_ROUND, _ROUND_OF_ALL = 1 << 20, 64 << 20


def gather_json(gang: Gang, value: Any, timeout: float) -> list[Any]:
    """Return the values of all ranks, by rank.

    :raises DeadlineError: a rank is late, see ``Gang.all_gather``.
    """
    return [json.loads(payload) for payload in gang.all_gather(json.dumps(value).encode(), timeout)]


def decide_json(gang: Gang, value: Any, decide: Callable[[list[Any]], Any], timeout: float) -> Any:
    """Return ``decide(values of all ranks, by rank)``, which runs on rank 0 only. It takes one trip to rank 0.

    :raises DeadlineError: a rank is late, see ``Gang.all_gather``.
    """

    def decided(others: list[bytes]) -> bytes:
        return json.dumps(decide([value, *map(json.loads, others)])).encode()

    return json.loads(gang.all_gather(decided if gang.rank == 0 else json.dumps(value).encode(), timeout)[0])


def gather_tensors(gang: Gang, tensors: list[torch.Tensor], timeout: float) -> list[list[torch.Tensor]]:
    """Return the tensors of all ranks, by rank, on the CPU. Ranks may send different numbers of tensors, of different
    shapes.

    Everything passes through rank 0, up to 1 MiB per rank at a time: suitable for megabytes, not for models.
    """
    named = {str(index): tensor for index, tensor in enumerate(tensors)}
    headers = gather_json(gang, describe(named), timeout)
    payload = b"".join(raw(tensor) for tensor in tensors)
    received = [bytearray() for _ in headers]
    size = min(_ROUND, _ROUND_OF_ALL // gang.world)
    for start in range(0, max(header["bytes"] for header in headers), size):
        for buffer, part in zip(received, gang.all_gather(payload[start : start + size], timeout), strict=True):
            buffer += part
    return [_unpack(header, buffer) for header, buffer in zip(headers, received, strict=True)]


def _unpack(header: dict[str, Any], buffer: bytearray) -> list[torch.Tensor]:
    tensors = list(allocate(header, len(buffer)).values())
    start = 0
    for tensor in tensors:
        view = raw(tensor)
        view[:] = buffer[start : start + len(view)]
        start += len(view)
    return tensors
