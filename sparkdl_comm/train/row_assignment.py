"""Assignment of rows to ranks in each epoch, and the rows of each step.

With ``data.shuffle=local`` a rank uses its own rows, in another order in each epoch. With ``global`` all ranks' rows
are redistributed in each epoch, by a permutation that all ranks compute equally; each rank keeps its number of rows.
The rows stay where they are: a rank fetches the rows of a step from their owners while it computes the previous step.
So resuming from a checkpoint needs only the number of the epoch. Slow rows are read while other rows are computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import torch

from sparkdl_comm.data.cache import Batch, RowCache
from sparkdl_comm.data.partitions import BatchSampler, deal_rows, permutation
from sparkdl_comm.gang.exchange import gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.train.spec import TrainSpec

if TYPE_CHECKING:
    from sparkdl_comm.train.row_exchange import RowExchange


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

    def sources(self) -> Iterator[list[int]]:
        """Yield the ranks from which others must take over the model's untrained state, for each step of an epoch before
        it begins, and for the epoch's end. An empty list: no rank must.

        A rank with no rows in a step, or with fewer than the step has parts, has run fewer forward passes than others.
        So its state is behind. It must take over theirs before its next forward pass. All ranks yield the same.
        """
        sampler, count = self._sampler, self._count
        ranks = {rank for rank, rows in enumerate(sampler.counts) if rows}
        if self._empty or all(sampler.counts[rank] // sampler.steps >= count for rank in ranks):
            yield from itertools.repeat([], sampler.steps + 1)
            return
        current = set(ranks)
        for step in range(sampler.steps):
            slices = {rank: sampler.slice(rank, step) for rank in ranks}
            passes = {rank: min(count, stop - start) for rank, (start, stop) in slices.items()}
            is_behind = any(passes[rank] for rank in ranks - current)
            yield sorted(current) if is_behind else []
            current = set(ranks) if is_behind else current
            most = max(passes.values())
            current &= {rank for rank in ranks if passes[rank] == most}
        yield sorted(current) if current != ranks else []

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


class RowAssignment:
    """Assignment of rows to one rank. ``source`` returns rows by their numbers. Call :meth:`close` at the end."""

    _exchange: RowExchange | None = None

    def __init__(self, spec: TrainSpec, gang: Gang, rows: RowCache, counts: Sequence[int]) -> None:
        """Serve this rank's rows to the other ranks from now on, if rows are shuffled globally. All ranks call it.

        No row moves yet: a rank fetches rows when it reads them.

        :param rows: the rows of this rank.
        :param counts: number of rows of each rank.
        :raises InputError: rows are shuffled globally, but their types or shapes differ between ranks.
        """
        self._gang, self._rows, self._counts = gang, rows, counts
        self._seed, self._timeout = spec.seed, spec.conf.timeout
        if spec.conf.data.shuffle == "global" and gang.world > 1:
            from sparkdl_comm.train.row_exchange import RowExchange

            self._exchange = RowExchange(gang, rows, counts, spec.conf.timeout)
        self.source: RowSource = self._exchange or rows

    def order(self, epoch: int) -> torch.Tensor:
        """Return the numbers of the rows that this rank uses in the epoch, in order of use: int64 ``[rows]``.

        Numbers start at 0. They are positions among this rank's own rows, or among all ranks' rows if rows are
        exchanged.
        """
        rank = self._gang.rank
        if self._exchange is None:
            return torch.from_numpy(permutation(self._rows.rows, self._seed, epoch, rank))
        return torch.from_numpy(deal_rows(self._counts, self._seed, epoch, rank))

    def gather_by_number(self, values: torch.Tensor) -> torch.Tensor:
        """Return a value for each row number, from ``values`` of this rank's own rows, ``[rows]``. All ranks call it."""
        if self._exchange is None:
            return values
        return torch.cat([theirs for (theirs,) in gather_tensors(self._gang, [values], self._timeout)])

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
