"""Validation at the end of an epoch: loss and metrics over the validation rows of all ranks."""

from __future__ import annotations

from typing import Any

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.train.loop.metrics import Metrics
from sparkdl_comm.train.loop.objective import Objective, target_of


class Evaluation:
    """Evaluation of the model on the validation rows.

    :param rows: validation rows of this rank, perhaps none.
    :param batch: rows per forward pass.
    """

    def __init__(self, rows: RowCache, batch: int, objective: Objective, metrics: Metrics) -> None:
        self._rows, self._batch = rows, batch
        self._objective, self._metrics = objective, metrics

    def run(self, module: torch.nn.Module, gang: Gang, timeout: float) -> dict[str, Any]:
        """Return ``val_loss``, the weighted mean over the rows of all ranks, and metrics by name; equal on all ranks.

        All ranks call it. It runs in eval mode without gradients, and leaves the module in train mode.
        """
        self._metrics.reset()
        total = weight = 0.0
        module.eval()
        with torch.no_grad(), self._objective.eval_mode():
            for index in torch.arange(self._rows.rows).split(self._batch):
                if not len(index):
                    continue
                batch = self._rows.take(index, self._objective.device)
                output, loss = self._objective(module, batch)
                divisor, count = self._objective.sizes(batch)
                total += loss.item() * divisor
                weight += count
                self._metrics.update(_as_float32(output), target_of(batch), len(index))
        module.train()
        sums = gather_json(gang, [total, weight], timeout)
        mean = sum(part[0] for part in sums) / sum(part[1] for part in sums)
        return {"val_loss": mean, **self._metrics.result(gang, timeout)}


def _as_float32(output: Any) -> Any:
    """Return a 16-bit output as float32, so that metrics do not depend on the precision of the forward pass."""
    is_half = isinstance(output, torch.Tensor) and output.dtype in (torch.bfloat16, torch.float16)
    return output.float() if is_half else output
