"""Rows of each step of an epoch on one rank, and their batches. Slow rows are read while other rows are computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

from sparkdl_comm.data.cache import Batch, RowCache
from sparkdl_comm.data.partitions import BatchSampler


class RowSource(Protocol):
    """Source of rows by their numbers. ``needs_read_ahead``: :meth:`pick` may wait for the network or disk."""

    @property
    def needs_read_ahead(self) -> bool: ...

    def pick(self, index: torch.Tensor) -> RowCache:
        """Return the rows with the numbers ``index`` (int64 ``[n]``), in its order, in memory."""


class StepRows:
    """Rows of one rank, step by step. If the source is slow, a thread reads the next step's rows ahead.

    The user's ``collate_fn`` runs when a batch is taken. Call :meth:`close` at the end.

    :param count: parts in which a step is computed.
    :param empty: also compute parts without rows.
    """

    def __init__(
        self, source: RowSource, sampler: BatchSampler, rank: int, count: int, device: torch.device, empty: bool = False
    ) -> None:
        self._source, self._sampler, self._rank, self._device = source, sampler, rank, device
        self._count, self._empty = count, empty
        self._order = torch.arange(0)
        self._read_ahead: dict[tuple[int, int], Future[RowCache]] = {}
        self._pool = ThreadPoolExecutor(1, "sparkdl-read-ahead") if source.needs_read_ahead else None

    def begin_epoch(self, order: torch.Tensor) -> None:
        """Start an epoch. ``order``: this rank's row numbers in the order of use, int64 ``[rows]``."""
        self._order = order
        self._read_ahead.clear()

    def rows_of(self, step: int) -> torch.Tensor:
        """Return the row numbers of a step, int64 ``[n]``."""
        return self._order[slice(*self._sampler.slice(self._rank, step))]

    def parts(self, step: int) -> list[torch.Tensor]:
        """Return the row numbers of a step, split into the parts in which it is computed."""
        return [part for part in self.rows_of(step).tensor_split(self._count) if len(part) or self._empty]

    def take(self, step: int, number: int) -> Batch:
        """Return the batch of part ``number`` of :meth:`parts`. The last part starts the read-ahead of the next step.

        :raises GangError: rows of other ranks cannot be fetched.
        """
        parts = self.parts(step)
        if self._pool is None:
            return self._read(parts[number]).batch()
        future = self._read_ahead.pop((step, number), None) or self._pool.submit(self._read, parts[number])
        rows = future.result()
        if number == len(parts) - 1 and step + 1 < self._sampler.steps:
            for each, part in enumerate(self.parts(step + 1)):
                self._read_ahead[step + 1, each] = self._pool.submit(self._read, part)
        return rows.batch()

    def _read(self, part: torch.Tensor) -> RowCache:
        return self._source.pick(part).to(self._device)

    def close(self) -> None:
        self._read_ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
