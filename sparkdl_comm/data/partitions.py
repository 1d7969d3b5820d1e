"""The batch sampler: which rows of which rank make up which step. Pure, so no rank has to ask another once the row counts are
known.

Every row is used once per epoch and all ranks do the same number of steps, whatever the partitions look like:

1. ``steps = ceil(total / batch_size)``, where ``total`` is the number of rows of all ranks.
2. A rank with ``n`` rows puts ``n // steps`` of them into every step, and one more into ``n % steps`` of the
   steps.
3. These extra rows are dealt out like cards, each rank going on where the one before stopped. So steps differ
   by at most one row in total, none is larger than ``batch_size``, and none is empty (``steps <= total``).

A batch is spread over the epoch evenly: 33 rows in batches of at most 32 are 17 and 16, not 32 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl_comm.errors import InputError

#: Rows per rank below which chance alone may give one rank twice as many as another.
_FEW = 100


@dataclass(frozen=True)
class BatchSampler:
    """Divides an epoch into steps; see the module. Make one with :meth:`of`.

    ``counts``: rows of each rank. ``steps``: steps per epoch, the same for all ranks. ``total``: rows of all
    ranks.
    """

    counts: tuple[int, ...]
    steps: int
    total: int

    @classmethod
    def of(cls, counts: Sequence[int], batch_size: int) -> BatchSampler:
        """A sampler for ranks with ``counts`` rows each and ``batch_size`` rows per step over all ranks.

        :raises InputError: no rows at all, a negative count, or a batch size below 1.
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
        """``(start, stop)`` of a step among this rank's (permuted) rows; equal where the rank has none."""
        return self._start(rank, step), self._start(rank, step + 1)

    def rows(self, step: int) -> int:
        """Rows of all ranks in a step, at least 1: a rank's mean loss weighs ``own rows / rows(step)``."""
        return self._cards(step + 1) - self._cards(step) + sum(count // self.steps for count in self.counts)

    def _start(self, rank: int, step: int) -> int:
        """Rows of this rank before ``step``."""
        base, extra = divmod(self.counts[rank], self.steps)
        first = sum(count % self.steps for count in self.counts[:rank]) % self.steps
        wrapped = max(0, first + extra - self.steps)
        return step * base + min(step, wrapped) + min(max(0, step - first), extra - wrapped)

    def _cards(self, step: int) -> int:
        """Extra rows of all ranks before ``step``: dealt one per step, round and round."""
        rounds, rest = divmod(sum(count % self.steps for count in self.counts), self.steps)
        return rounds * step + min(step, rest)


def permutation(rows: int, seed: int, epoch: int, rank: int) -> np.ndarray:
    """Order in which a rank uses its rows in an epoch: int64 ``[rows]``, a function of the arguments alone.

    ``seed`` may be negative (Spark's are); ``epoch`` and ``rank`` start at 0.
    """
    sequence = np.random.SeedSequence([seed % 2**64, epoch, rank])
    return np.random.Generator(np.random.Philox(sequence)).permutation(rows)


def dealt(counts: Sequence[int], seed: int, epoch: int, rank: int) -> np.ndarray:
    """The rows that a rank uses in an epoch in which all ranks' rows are dealt anew, in the order in which it uses them: int64
    ``[counts[rank]]``, a function of the arguments alone.

    A row's number is its place among the rows of all ranks, those of rank 0 first. Each number is one rank's, and each rank
    gets as many rows as it has. All are drawn on the way, which takes 8 bytes for each row of all ranks.
    """
    start = sum(counts[:rank])
    return permutation(sum(counts), seed, epoch, 0)[start : start + counts[rank]].copy()


def lopsided(counts: Sequence[int]) -> str | None:
    """What to tell of ranks with ``counts`` rows each: one of them has so many that the others wait for it; or None."""
    total, most = sum(counts), max(counts)
    if total < _FEW * len(counts) or most <= 2 * total / len(counts):
        return None
    return (
        f"rank {counts.index(most)} has {most} of the {total} rows, and the others wait for it in each step: equal rows go to"
        " the same rank, and there are many of some. Merge equal rows, with their number as weightCol"
    )
