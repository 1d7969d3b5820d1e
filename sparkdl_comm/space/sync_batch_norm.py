"""SyncBatchNorm with statistics over all ranks' rows in a forward pass, as if one process had them.

torch's implementation runs only on GPUs, and not on ranks without rows. Here, per layer and forward pass, with C
channels:

1. All-reduce of C + 1 numbers: the sum per channel, and the number of elements. All ranks then have the mean.
2. All-reduce of C numbers: the squared deviations from the mean. All ranks then have the variance.

The backward pass has two all-reduces of the same sizes, for the gradients of these sums. One round with sums of squares
would lose digits in their difference. Parameters, buffers and the result in eval mode are torch's.

A rank without rows takes part as well, since the others wait for it.
"""

from __future__ import annotations

import datetime
import functools
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sparkdl_comm.errors import DeadlineError, GangError, ModelError
from sparkdl_comm.gang.failure import is_peer_late
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.process_group import BACKENDS, bind_to_nic


def synchronize(module: nn.Module, device: torch.device, gang: Gang, timeout: float, stack: ExitStack) -> bool:
    """Make the SyncBatchNorm layers of ``module`` work across ``gang``. Return whether there are any.

    If there are, all ranks must call the module equally often.

    :param stack: closes the process group, if one is created here.
    :param timeout: seconds for an all-reduce.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.SyncBatchNorm)]
    if layers and not dist.is_initialized():
        bind_to_nic(gang)
        dist.init_process_group(
            BACKENDS[device.type],
            store=gang.store("sync-batch-norm"),
            rank=gang.rank,
            world_size=gang.world,
            timeout=datetime.timedelta(seconds=timeout),
        )
        stack.callback(dist.destroy_process_group)
    for layer in layers:
        layer.forward = functools.partial(_forward, layer)  # type: ignore[method-assign]
    return bool(layers)


def _forward(layer: nn.SyncBatchNorm, rows: torch.Tensor) -> torch.Tensor:
    """Return the normalized rows. ``rows``: ``[rows, C, …]``, perhaps without rows."""
    if not layer.training:
        return nn.SyncBatchNorm.forward(layer, rows)
    values = rows.float()
    others = [0, *range(2, rows.dim())]
    channels = [1, -1, *[1] * (rows.dim() - 2)]
    count = values.new_tensor([values.numel() // max(1, values.shape[1])])
    sums: torch.Tensor = _Sum.apply(torch.cat([values.sum(others), count]))
    total = sums[-1].item()
    if total < 2:
        raise ModelError("SyncBatchNorm: a step with one value per channel has no variance. Use larger batches.")
    mean = sums[:-1] / total
    centred = values - mean.view(channels)
    variance: torch.Tensor = _Sum.apply(centred.square().sum(others)) / total
    _update_statistics(layer, mean.detach(), variance.detach() * (total / (total - 1)))
    normal = centred * torch.rsqrt(variance + layer.eps).view(channels)
    if layer.affine:
        normal = normal * layer.weight.view(channels) + layer.bias.view(channels)
    return normal.to(rows.dtype)


def _update_statistics(layer: nn.SyncBatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """Update the running statistics like torch."""
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return  # track_running_stats=False
    layer.num_batches_tracked.add_(1)
    weight = 1.0 / layer.num_batches_tracked.item() if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean, weight)
    layer.running_var.lerp_(variance, weight)


class _Sum(torch.autograd.Function):
    """Sum over the ranks. The loss is also a sum over the ranks, so the gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, vector: torch.Tensor) -> torch.Tensor:
        return _all_reduce(vector)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _all_reduce(gradient)


def _all_reduce(vector: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks.

    :raises GangError: another rank is late or lost. A plain RuntimeError would look like a mistake in this rank's
        model.
    """
    total = vector.clone()
    try:
        dist.all_reduce(total)
    except RuntimeError as exc:
        if is_peer_late(exc):
            raise DeadlineError(f"SyncBatchNorm waited too long for another rank. Raise {TIMEOUT_KEY}.") from exc
        raise GangError(f"SyncBatchNorm lost another rank: {exc}") from exc
    return total
