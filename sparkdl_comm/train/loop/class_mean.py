"""The mean of torch's losses over classes, over all ranks: with weights of classes, or with labels that are ignored.

There a row does not count as one, but as the sum of its labels' weights, of which an ignored one has none. With ``weightCol``
it counts as this sum times its own weight. So:

1. each rank computes what its rows count, once;
2. at the start of an epoch the ranks tell each other what their rows of each step count: 8 bytes per rank and step;
3. a rank's mean loss in a step then weighs as much as its rows count among those of all ranks.

Where all rows of all ranks count the same, nothing of it is done but the comparison.
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
from sparkdl_comm.train.loop.dealing import Dealing
from sparkdl_comm.train.spec import Loss

#: ``(output, target, reduction=…)`` -> the loss, reduced so.
Reducible: TypeAlias = Callable[..., Any]

_FUNCTIONS = {F.cross_entropy: -100, F.nll_loss: -100}  # with the label that they ignore by default


@dataclass(frozen=True)
class ClassMean:
    """A loss: the sum over the rows, divided by the sum of what they count. It is 0 where no row counts, for which torch has
    NaN.

    ``loss``: the user's; takes a keyword ``reduction``. ``weight``: ``[classes]``; None: all weigh 1. ``ignored``: the label
    that does not count. ``column``, and ``validation``, what chooses the rows for validation: for messages.
    """

    loss: Reducible
    weight: torch.Tensor | None
    ignored: int
    column: str
    validation: str | None

    @classmethod
    def of(cls, loss: Loss, rows: RowFormat) -> ClassMean | None:
        """None: the mean of ``loss`` is not over labels of one column, or not one of torch's own."""
        if [field.dtype for field in rows.targets] != ["int64"]:
            return None
        names = str(rows.targets[0]), rows.validation
        if type(loss) in (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss):
            module: Any = loss
            return cls(functools.partial(_reduced, module), module.weight, module.ignore_index, *names)
        given: Any = loss if isinstance(loss, functools.partial) else functools.partial(loss)
        if given.func not in _FUNCTIONS:
            return None
        ignored = given.keywords.get("ignore_index", _FUNCTIONS[given.func])
        return cls(given, given.keywords.get("weight"), ignored, *names)

    def __call__(self, output: Any, target: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """``weights``: of the rows, ``[rows]``; None: all weigh 1."""
        count = self.counts(target, weights).sum()
        if weights is None:
            total = self.loss(output, target, reduction="sum")
        else:
            total = (_row_sums(self.loss(output, target, reduction="none")) * weights).sum()
        return total / count if count > 0 else total

    def counts(self, labels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """What rows count, float64 ``[rows]``. ``labels``: int64 ``[rows, …]``; those that are no classes are found later.
        ``weights``: of the rows, ``[rows]``; None: all weigh 1."""
        counts = (labels != self.ignored).double()
        if self.weight is not None:
            counts *= self.weight.to(labels.device)[labels.clamp(0, len(self.weight) - 1)]
        counts = _row_sums(counts)
        return counts if weights is None else counts * weights

    def needed(self, parts: Sequence[RowCache], gang: Gang, timeout: float) -> bool:
        """Whether rows of any rank count differently by their labels. With weights of rows: whether classes have weights, or
        labels are ignored. All ranks call it. ``parts``: all rows of this one, for training and perhaps for validation.

        :raises InputError: no row of all ranks' counts, of those for training or of those for validation.
        """
        counts = [self.counts(part.targets[0]) for part in parts]
        weighed = [self.counts(part.targets[0], part.weights).sum().item() for part in parts]
        span = [[part.min().item(), part.max().item()] if len(part) else [] for part in counts]
        told = gather_json(gang, [span, weighed], timeout)
        for index, purpose in enumerate(("training", "validation")[: len(parts)]):
            if not any(sums[index] for _, sums in told):
                chosen = f" (by {self.validation})" if purpose == "validation" else ""
                raise InputError(
                    f"{self.column}: no label of the rows for {purpose}{chosen} counts in the loss: all are"
                    f" ignore_index={self.ignored}, or of classes whose weight is 0, or of rows whose weight is 0"
                )
        found = {count for spans, _ in told for part in spans for count in part}
        if parts[0].weights is None:
            return len(found) > 1
        return self.weight is not None or found != {math.prod(parts[0].targets[0].shape[1:])}


def _reduced(module: torch.nn.Module, output: Any, target: torch.Tensor, reduction: str) -> Any:
    """The module's loss with another reduction than its own."""
    reducing: Any = copy.copy(module)
    reducing.reduction = reduction
    return reducing(output, target)


def _row_sums(values: torch.Tensor) -> torch.Tensor:
    """``[rows]`` from ``[rows, …]``."""
    return values.flatten(1).sum(1) if values.dim() > 1 else values


class Shares:
    """The share of this rank's rows in each step's mean, which is over all ranks' rows of the step."""

    def __init__(
        self,
        mean: ClassMean | None,
        rows: RowCache,
        dealing: Dealing,
        sampler: BatchSampler,
        gang: Gang,
        timeout: float,
    ) -> None:
        """All ranks make one. ``mean``: None: all rows count the same. ``rows``: those that this rank has."""
        #: By the number of the row.
        self._counts = None if mean is None else dealing.numbered(mean.counts(rows.targets[0], rows.weights))
        self._sampler, self._gang, self._timeout = sampler, gang, timeout
        self._totals: list[float] = []

    def begin_epoch(self, order: torch.Tensor) -> None:
        """All ranks call it. ``order``: in which this rank uses its rows."""
        if self._counts is None:
            return
        counts, slices = (
            self._counts[order],
            (self._sampler.slice(self._gang.rank, n) for n in range(self._sampler.steps)),
        )
        own = [counts[start:stop].sum() for start, stop in slices]
        told = gather_tensors(self._gang, [torch.stack(own)], self._timeout)
        self._totals = torch.stack([counts for (counts,) in told]).sum(0).tolist()

    def of(self, index: torch.Tensor, step: int) -> float:
        """The share of the rows of the numbers ``index``, some of this rank's in a step of the epoch; 0 if no row of it
        counts."""
        if self._counts is None:
            return len(index) / self._sampler.rows(step)
        total = self._totals[step]
        return self._counts[index].sum().item() / total if total else 0.0
