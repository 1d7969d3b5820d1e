"""Mean over all ranks of torch's losses over classes, with class weights or ignored labels.

A row does not count as one here, but as the sum of its labels' class weights; an ignored label weighs 0. With
``weightCol`` this sum is multiplied by the row's weight. So:

1. Each rank computes the counts of its rows once.
2. At the start of an epoch the ranks exchange the counts of their rows in each step: 8 bytes per rank and step.
3. A rank's mean loss in a step is weighted by its share of the step's total count.

If all rows of all ranks count the same, only the comparison that finds this out is done.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.train.row_assignment import RowAssignment
from sparkdl_comm.train.spec import Loss

#: ``(output, target, reduction=…)`` -> the loss with this reduction.
Reducible: TypeAlias = Callable[..., Any]

_FUNCTIONS = {F.cross_entropy: -100, F.nll_loss: -100}  # function -> label that it ignores by default


@dataclass(frozen=True)
class ClassMean:
    """Loss over classes: the sum over the rows, divided by the sum of their counts. It is 0 if no row counts, where
    torch returns NaN.

    :param loss: the user's loss, which takes a keyword ``reduction``.
    :param weight: class weights ``[classes]``. None: all are 1.
    :param ignored: label that does not count.
    :param column: label column, for messages.
    :param validation: setting that selects the validation rows, for messages.
    """

    loss: Reducible
    weight: torch.Tensor | None
    ignored: int
    column: str
    validation: str | None

    @classmethod
    def of(cls, loss: Loss, rows: RowFormat) -> ClassMean | None:
        """Return the ClassMean of one of torch's losses over labels of one column, or of a subclass that computes the same;
        None for any other loss.
        """
        if [field.dtype for field in rows.targets] != ["int64"]:
            return None
        names = str(rows.targets[0]), rows.validation
        if _computes_as_torch(loss):
            module: Any = loss
            return cls(functools.partial(_reduced, module), module.weight, module.ignore_index, *names)
        function: Any = loss if isinstance(loss, functools.partial) else functools.partial(loss)
        if function.func not in _FUNCTIONS:
            return None
        ignored = function.keywords.get("ignore_index", _FUNCTIONS[function.func])
        return cls(function, function.keywords.get("weight"), ignored, *names)

    def __call__(self, output: Any, target: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean loss. ``weights``: row weights ``[rows]``; None: all are 1."""
        count = self.counts(target, weights).sum()
        if weights is None:
            total: torch.Tensor = self.loss(output, target, reduction="sum")
        else:
            total = (_row_sums(self.loss(output, target, reduction="none")) * weights).sum()
        return total / count if count > 0 else total

    def counts(self, labels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the counts of rows, float64 ``[rows]``.

        :param labels: int64 ``[rows, …]``. Labels outside the classes are clamped here, and reported elsewhere.
        :param weights: row weights ``[rows]``. None: all are 1.
        """
        counts = (labels != self.ignored).double()
        if self.weight is not None:
            counts *= self.weight.to(labels.device)[labels.clamp(0, len(self.weight) - 1)]
        counts = _row_sums(counts)
        return counts if weights is None else counts * weights

    def is_needed(self, parts: Sequence[RowCache], gang: Gang, timeout: float) -> bool:
        """Return whether the counts of rows differ on any rank. All ranks call it.

        With row weights: whether classes have weights, or labels are ignored.

        :param parts: all rows of this rank, for training and perhaps for validation.
        :raises InputError: no row of all ranks counts, for training or for validation.
        """
        counts = [self.counts(part.targets[0]) for part in parts]
        weighted_counts = [self.counts(part.targets[0], part.weights).sum().item() for part in parts]
        span = [[part.min().item(), part.max().item()] if len(part) else [] for part in counts]
        reports = gather_json(gang, [span, weighted_counts], timeout)
        for index, purpose in enumerate(("training", "validation")[: len(parts)]):
            if not any(sums[index] for _, sums in reports):
                selection = f" (by {self.validation})" if purpose == "validation" else ""
                raise InputError(
                    f"{self.column}: no label of the rows for {purpose}{selection} counts in the loss: all are"
                    f" ignore_index={self.ignored}, or of classes whose weight is 0, or of rows whose weight is 0"
                )
        distinct_counts = {count for spans, _ in reports for part in spans for count in part}
        if parts[0].weights is None:
            return len(distinct_counts) > 1
        return self.weight is not None or distinct_counts != {math.prod(parts[0].targets[0].shape[1:])}


def _computes_as_torch(loss: Any) -> bool:
    """Return whether ``loss`` is a module of torch's, or of a subclass that overrides neither ``forward`` nor ``__call__``."""
    kinds = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)
    if not isinstance(loss, kinds) or type(loss).__call__ is not torch.nn.Module.__call__:
        return False
    return getattr(loss.forward, "__func__", None) in [kind.forward for kind in kinds]


def _reduced(module: torch.nn.Module, output: Any, target: torch.Tensor, reduction: str) -> Any:
    """Return the module's loss with ``reduction`` instead of its own."""
    copied: Any = copy.copy(module)
    copied.reduction = reduction
    return copied(output, target)


def _row_sums(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, ``[rows]``, of values ``[rows, …]``."""
    return values.flatten(1).sum(1) if values.dim() > 1 else values


class Shares:
    """Weight of this rank's rows in the mean over all ranks' rows of each step."""

    def __init__(
        self,
        mean: ClassMean | None,
        rows: RowCache,
        row_assignment: RowAssignment,
        sampler: BatchSampler,
        gang: Gang,
        timeout: float,
    ) -> None:
        """Create the shares. All ranks call it.

        :param mean: the loss that weights rows. None: all rows count the same.
        :param rows: the rows of this rank.
        """
        #: Counts by row number.
        self._counts = (
            None if mean is None else row_assignment.gather_by_number(mean.counts(rows.targets[0], rows.weights))
        )
        self._sampler, self._gang, self._timeout = sampler, gang, timeout
        self._totals: list[float] = []

    def begin_epoch(self, order: torch.Tensor) -> None:
        """Exchange the counts of each step. All ranks call it. ``order``: this rank's row numbers in the order of use."""
        if self._counts is None:
            return
        counts, slices = (
            self._counts[order],
            (self._sampler.slice(self._gang.rank, n) for n in range(self._sampler.steps)),
        )
        own_counts = [counts[start:stop].sum() for start, stop in slices]
        reports = gather_tensors(self._gang, [torch.stack(own_counts)], self._timeout)
        self._totals = torch.stack([counts for (counts,) in reports]).sum(0).tolist()

    def share_of(self, index: torch.Tensor, step: int) -> float:
        """Return the share of some rows in a step of the epoch; 0 if no row of the step counts.

        :param index: numbers of rows that this rank uses in the step.
        """
        if self._counts is None:
            return len(index) / self._sampler.rows(step)
        total = self._totals[step]
        return self._counts[index].sum().item() / total if total else 0.0
