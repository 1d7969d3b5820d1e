"""Which rows a rank uses in an epoch, and where it gets them.

With ``data.shuffle=local`` they are its own, in another order in each epoch. With ``global`` all ranks' rows are dealt anew
in each epoch, by a permutation that all ranks draw alike; each rank uses as many as it has. The rows stay where they are: a
rank gets those of a step from the ranks that have them, while it computes the step before. So training that goes on from a
checkpoint needs nothing but the number of the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import dealt, permutation
from sparkdl_comm.gang.exchange import gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.train.loop.row_exchange import RowExchange
from sparkdl_comm.train.loop.step_rows import RowSource
from sparkdl_comm.train.spec import TrainSpec


class Dealing:
    """Deals out rows for one rank. ``source`` has them, by their numbers. To be closed."""

    def __init__(self, spec: TrainSpec, gang: Gang, rows: RowCache, counts: Sequence[int]) -> None:
        """All ranks make one. ``rows``: those that this rank has; ``counts``: how many each rank has.

        :raises InputError: the ranks' rows are not alike, and are to be exchanged.
        """
        self._gang, self._rows, self._counts = gang, rows, counts
        self._seed, self._timeout = spec.seed, spec.conf.timeout
        self._exchange = None
        if spec.conf.data_shuffle == "global" and gang.world > 1:
            self._exchange = RowExchange(gang, rows, counts, spec.conf.timeout)
        self.source: RowSource = self._exchange or rows

    def order(self, epoch: int) -> torch.Tensor:
        """The numbers of the rows that this rank uses in the epoch, from 0, in its order: int64 ``[rows]``. Numbers are places
        among its own rows, or, where rows are exchanged, among those of all ranks."""
        rank = self._gang.rank
        if self._exchange is None:
            return torch.from_numpy(permutation(self._rows.rows, self._seed, epoch, rank))
        return torch.from_numpy(dealt(self._counts, self._seed, epoch, rank))

    def numbered(self, values: torch.Tensor) -> torch.Tensor:
        """A value of each row by its number, from ``values`` of this rank's own rows, ``[rows]``. All ranks call it."""
        if self._exchange is None:
            return values
        return torch.cat([theirs for (theirs,) in gather_tensors(self._gang, [values], self._timeout)])

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
