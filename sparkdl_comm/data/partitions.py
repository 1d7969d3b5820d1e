"""Batch sampler: the rows of each rank in each step.

It is a pure function of the row counts, so ranks do not communicate once these are known. Every row is used once per
epoch, and all ranks run the same number of steps, for any partitioning:

1. ``steps = ceil(total / batch_size)``, where ``total`` is the number of rows of all ranks.
2. A rank with ``n`` rows puts ``n // steps`` of them into every step, and one more into ``n % steps`` of the steps.
3. These extra rows are dealt out like cards: each rank goes on at the step where the rank before stopped. So steps
   differ by at most one row in total, none is larger than ``batch_size``, and none is empty (``steps <= total``).

Steps have even sizes: 33 rows in batches of at most 32 become 17 and 16, not 32 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import InputError

#: Rows per rank below which one rank may by chance have twice as many rows as another.
_MIN_ROWS = 100


@dataclass(frozen=True)
class BatchSampler:
    """Division of an epoch into steps; see the module. Make one with :meth:`of`.

    ``counts``: rows of each rank. ``steps``: steps per epoch, the same for all ranks. ``total``: rows of all ranks.
    """

    counts: tuple[int, ...]
    steps: int
    total: int

    @classmethod
    def of(cls, counts: Sequence[int], batch_size: int) -> BatchSampler:
        """Return a sampler for ranks with ``counts`` rows each and ``batch_size`` rows per step over all ranks.

        :raises InputError: there are no rows, a count is negative, or the batch size is below 1.
        """
        if batch_size < 1:
            raise InputError(f"batchSize={batch_size}: must be at least 1 row over all ranks")
        if any(count < 0 for count in counts):
            raise InputError(f"row counts of the ranks must not be negative: {list(counts)}")
        total = sum(counts)
        if total == 0:
            raise InputError(f"nothing to train on: all {len(counts)} partitions are empty")
        return cls(tuple(counts), -(-total // batch_size), total)

    def slice(self, rank: int, step: int) -> tuple[int, int]:
        """Return ``(start, stop)`` of a step among this rank's permuted rows. They are equal if it has none in this
        step."""
        return self._rows_before(rank, step), self._rows_before(rank, step + 1)

    def rows(self, step: int) -> int:
        """Return the rows of all ranks in a step, at least 1. A rank's mean loss is weighted by ``own rows /
        rows(step)``."""
        return (
            self._extra_rows_before(step + 1)
            - self._extra_rows_before(step)
            + sum(count // self.steps for count in self.counts)
        )

    def _rows_before(self, rank: int, step: int) -> int:
        """Return the number of this rank's rows before ``step``."""
        base, extra = divmod(self.counts[rank], self.steps)
        first = sum(count % self.steps for count in self.counts[:rank]) % self.steps
        wrapped = max(0, first + extra - self.steps)
        return step * base + min(step, wrapped) + min(max(0, step - first), extra - wrapped)

    def _extra_rows_before(self, step: int) -> int:
        """Return the number of extra rows of all ranks before ``step``. They are dealt round robin, one per step."""
        rounds, rest = divmod(sum(count % self.steps for count in self.counts), self.steps)
        return rounds * step + min(step, rest)


def permutation(rows: int, seed: int, epoch: int, rank: int) -> NDArray[np.int64]:
    """Return the order of a rank's rows in an epoch, int64 ``[rows]``: a pure function of the arguments.

    ``seed`` may be negative, as Spark's are. ``epoch`` and ``rank`` start at 0.
    """
    sequence = np.random.SeedSequence([seed % 2**64, epoch, rank])
    return np.random.Generator(np.random.Philox(sequence)).permutation(rows)


def deal_rows(counts: Sequence[int], seed: int, epoch: int, rank: int) -> NDArray[np.int64]:
    """Return the rows that a rank uses in an epoch that shuffles rows across ranks, in order, int64 ``[counts[rank]]``.

    The result is a pure function of the arguments. A row's number is its position among the rows of all ranks, rank 0
    first. Each number goes to one rank, and each rank gets as many rows as it owns. Takes 8 bytes of memory per row of
    all ranks.
    """
    start = sum(counts[:rank])
    return permutation(sum(counts), seed, epoch, 0)[start : start + counts[rank]].copy()


def describe_imbalance(counts: Sequence[int]) -> str | None:
    """Return a warning if one of the ranks has so many rows that the others wait for it, or None.

    :param counts: rows of each rank.
    """
    total, most = sum(counts), max(counts)
    if total < _MIN_ROWS * len(counts) or most <= 2 * total / len(counts):
        return None
    return (
        f"rank {counts.index(most)} has {most} of the {total} rows, and the others wait for it in each step. Equal rows go to"
        " the same rank, and some rows occur often. Merge equal rows, with their number as weightCol"
    )
