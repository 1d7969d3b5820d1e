"""Which of a rank's rows are computed in which step of an epoch, and their batches: read while others are computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

from sparkdl_comm.data.cache import Batch, RowCache
from sparkdl_comm.data.partitions import BatchSampler


class RowSource(Protocol):
    """Rows by their numbers. ``slow``: whether :meth:`pick` may have to wait, so that others are computed meanwhile."""

    @property
    def slow(self) -> bool: ...

    def pick(self, index: torch.Tensor) -> RowCache:
        """The rows of the numbers ``index`` (int64 ``[n]``), in its order, in memory."""


class StepRows:
    """The rows of one rank. Where it takes time to get them, a thread gets those of the next step; ``collate_fn``, which is
    the user's, is called when they are taken. To be closed.

    ``count``: parts in which a step is computed. ``empty``: parts without rows are, too.
    """

    def __init__(
        self, source: RowSource, sampler: BatchSampler, rank: int, count: int, device: torch.device, empty: bool = False
    ) -> None:
        self._source, self._sampler, self._rank, self._device = source, sampler, rank, device
        self._count, self._empty = count, empty
        self._order = torch.arange(0)
        self._ahead: dict[tuple[int, int], Future[RowCache]] = {}
        self._pool = ThreadPoolExecutor(1, "sparkdl-read-ahead") if source.slow else None

    def begin_epoch(self, order: torch.Tensor) -> None:
        """``order``: in which this rank uses its rows, int64 ``[rows]``."""
        self._order = order
        self._ahead.clear()

    def of(self, step: int) -> torch.Tensor:
        """The numbers of the rows of a step, int64 ``[n]``."""
        return self._order[slice(*self._sampler.slice(self._rank, step))]

    def parts(self, step: int) -> list[torch.Tensor]:
        """The same, in parts as they are computed."""
        return [part for part in self.of(step).tensor_split(self._count) if len(part) or self._empty]

    def take(self, step: int, number: int) -> Batch:
        """The batch of part ``number`` of :meth:`parts`. After the last one, those of the next step are read.

        :raises GangError: rows of other ranks do not come.
        """
        parts = self.parts(step)
        if self._pool is None:
            return self._read(parts[number]).batch()
        ahead = self._ahead.pop((step, number), None) or self._pool.submit(self._read, parts[number])
        rows = ahead.result()
        if number == len(parts) - 1 and step + 1 < self._sampler.steps:
            for each, part in enumerate(self.parts(step + 1)):
                self._ahead[step + 1, each] = self._pool.submit(self._read, part)
        return rows.batch()

    def _read(self, part: torch.Tensor) -> RowCache:
        return self._source.pick(part).to(self._device)

    def close(self) -> None:
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
