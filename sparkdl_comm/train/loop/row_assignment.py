"""Assignment of rows to ranks in each epoch.

With ``data.shuffle=local`` a rank uses its own rows, in another order in each epoch. With ``global`` all ranks' rows
are redistributed in each epoch, by a permutation that all ranks compute equally; each rank keeps its number of rows.
The rows stay where they are: a rank fetches the rows of a step from their owners while it computes the previous step.
So resuming from a checkpoint needs only the number of the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import deal_rows, permutation
from sparkdl_comm.gang.exchange import gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.train.loop.row_exchange import RowExchange
from sparkdl_comm.train.loop.step_rows import RowSource
from sparkdl_comm.train.spec import TrainSpec


class RowAssignment:
    """Assignment of rows to one rank. ``source`` returns rows by their numbers. Call :meth:`close` at the end."""

    def __init__(self, spec: TrainSpec, gang: Gang, rows: RowCache, counts: Sequence[int]) -> None:
        """Start the row exchange if rows are shuffled globally. All ranks call it.

        :param rows: the rows of this rank.
        :param counts: number of rows of each rank.
        :raises InputError: rows are shuffled globally, but their types or shapes differ between ranks.
        """
        self._gang, self._rows, self._counts = gang, rows, counts
        self._seed, self._timeout = spec.seed, spec.conf.timeout
        self._exchange = None
        if spec.conf.data.shuffle == "global" and gang.world > 1:
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
