"""Which of a rank's rows are computed in which step of an epoch, and their batches: read while others are computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from sparkdl_comm.data.cache import Batch, RowCache
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.data.ragged import Ragged


class StepRows:
    """The rows of one rank. Those of the next step are read from the disk by a thread; rows in memory, and those that
    ``collate_fn`` makes batches of, which is the user's, are read when they are taken. To be closed.

    ``count``: parts in which a step is computed. ``empty``: parts without rows are, too.
    """

    def __init__(
        self, rows: RowCache, sampler: BatchSampler, rank: int, count: int, device: torch.device, empty: bool = False
    ) -> None:
        self._rows, self._sampler, self._rank, self._device = rows, sampler, rank, device
        self._count, self._empty = count, empty
        self._order = torch.arange(0)
        self._ahead: dict[tuple[int, int], Future[Batch]] = {}
        self._pool: ThreadPoolExecutor | None = None
        if rows.file is not None and not any(isinstance(column, Ragged) for column in rows.inputs):
            self._pool = ThreadPoolExecutor(1, "sparkdl-read-ahead")

    def begin_epoch(self, order: torch.Tensor) -> None:
        """``order``: in which this rank uses its rows, int64 ``[rows]``."""
        self._order = order
        self._ahead.clear()

    def of(self, step: int) -> torch.Tensor:
        """Where the rows of a step are, int64 ``[n]``."""
        return self._order[slice(*self._sampler.slice(self._rank, step))]

    def parts(self, step: int) -> list[torch.Tensor]:
        """The same, in parts as they are computed."""
        return [part for part in self.of(step).tensor_split(self._count) if len(part) or self._empty]

    def take(self, step: int, number: int) -> Batch:
        """The batch of part ``number`` of :meth:`parts`. After the last one, those of the next step are read."""
        ahead = self._ahead.pop((step, number), None)
        parts = self.parts(step)
        batch = self._rows.take(parts[number], self._device) if ahead is None else ahead.result()
        if self._pool is not None and number == len(parts) - 1 and step + 1 < self._sampler.steps:
            for each, part in enumerate(self.parts(step + 1)):
                self._ahead[step + 1, each] = self._pool.submit(self._rows.take, part, self._device)
        return batch

    def close(self) -> None:
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
