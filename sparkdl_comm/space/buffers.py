"""Buffers, such as the running statistics of BatchNorm: each rank keeps its own during an epoch, all have the same after.

At the end of an epoch:

1. ranks compare digests of their buffers, one all-gather; models without buffers skip even that;
2. those that differ travel: floating-point ones become the mean over the ranks, weighted by their rows and added in their
   order; others are those of the first rank that has rows.
"""

from __future__ import annotations

import hashlib

import torch

from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import raw


def average(module: torch.nn.Module, rows: int, gang: Gang, timeout: float) -> None:
    """Gives all ranks the same buffers; ``rows`` of this rank went into its own. All ranks call it."""
    buffers = [buffer for buffer in module.buffers() if buffer.numel()]
    if not buffers:
        return
    digests = [hashlib.blake2b(raw(buffer), digest_size=16).hexdigest() for buffer in buffers]
    told = gather_json(gang, {"rows": rows, "digests": digests}, timeout)
    differ = [buffer for index, buffer in enumerate(buffers) if len({rank["digests"][index] for rank in told}) > 1]
    if not differ:
        return
    shares = [rank["rows"] for rank in told]
    first = next(index for index, share in enumerate(shares) if share)
    gathered = gather_tensors(gang, differ, timeout)
    with torch.no_grad():
        for index, buffer in enumerate(differ):
            if buffer.is_floating_point():
                mean = torch.zeros_like(gathered[0][index], dtype=torch.float64)
                for share, theirs in zip(shares, gathered, strict=True):
                    if share:
                        mean += theirs[index].double() * (share / sum(shares))
                buffer.copy_(mean)
            else:
                buffer.copy_(gathered[first][index])
