"""Metrics over the validation rows of all ranks: torchmetrics, and callables ``(output, target)`` -> scalar."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang


class Metrics:
    """Metrics over the rows of all ranks.

    A callable's value is the mean over the rows of its values for the batches. A torchmetrics.Metric has the value that
    it would have in one process with all rows: the ranks exchange its states and merge them as torchmetrics does.
    """

    def __init__(self, metrics: Mapping[str, Any], device: torch.device) -> None:
        self._torchmetrics = {
            name: copy.deepcopy(metric).to(device) for name, metric in metrics.items() if _is_torchmetric(metric)
        }
        self._functions = {name: metric for name, metric in metrics.items() if name not in self._torchmetrics}
        self.reset()

    def reset(self) -> None:
        self._rows = 0
        self._sums = dict.fromkeys(self._functions, 0.0)
        for metric in self._torchmetrics.values():
            metric.reset()

    def update(self, output: Any, target: Any, rows: int) -> None:
        """Add a batch.

        :raises ModelError: a callable does not return a scalar.
        """
        self._rows += rows
        for metric in self._torchmetrics.values():
            metric.update(output, target)
        for name, function in self._functions.items():
            value = function(output, target)
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ModelError(f"metrics[{name!r}]: must return a scalar, not a tensor of shape {tuple(value.shape)}")
            self._sums[name] += float(value) * rows

    def result(self, gang: Gang, timeout: float) -> dict[str, Any]:
        """Return the metrics by name, equal on all ranks: numbers, or lists if a torchmetrics.Metric computes a vector."""
        result: dict[str, Any] = {}
        if self._functions:
            reports = gather_json(gang, {"rows": self._rows, "sums": self._sums}, timeout)
            rows = sum(rank["rows"] for rank in reports)
            result = {name: sum(rank["sums"][name] for rank in reports) / rows for name in self._functions}
        for name, metric in self._torchmetrics.items():
            result[name] = _compute(name, metric, gang, timeout)
        return result


def _compute(name: str, metric: Any, gang: Gang, timeout: float) -> Any:
    def gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        parts = [tensors[0].to(tensor.device) for tensors in gather_tensors(gang, [tensor], timeout)]
        # A rank without rows sends an empty float tensor, which would turn integers into floats.
        return [part for part in parts if part.numel()] or parts

    # compute() merges the ranks' states by these functions, and restores its own state afterwards.
    metric.dist_sync_fn, metric.distributed_available_fn = gather, lambda: True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "compute was called before update", on a rank without rows
        value = metric.compute()
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"metrics[{name!r}]: must compute a tensor, not a {type(value).__name__}")
    return value.item() if value.numel() == 1 else value.tolist()


def _is_torchmetric(metric: Any) -> bool:
    """Return whether ``metric`` is a torchmetrics.Metric, without importing torchmetrics, which is optional."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, module.Metric)
