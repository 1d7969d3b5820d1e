"""Layout of one part per rank in the vector that a plan scatters or gathers.

Algorithms decide which elements a rank owns. With BML a rank owns many pieces. A ring on BCube does not follow the
order of the ranks. Some ranks own a few elements more than others. But callers of reduce-scatter and all-gather have
parts of equal length. So the plan's vector is longer than the parts together if necessary. A part fills the ranges that
its rank owns from their beginning, and the rest of the ranges is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from sparkdl_comm.collectives.plan import Plan


class PartLayout:
    """Positions of the parts of a gang's ranks in a vector of :attr:`size` elements.

    :param make: function that returns the plan for a vector of the given number of elements.
    :param count: elements per part.
    :param order: ``order[place]``: the gang's rank that is rank ``place`` of the plans.
    """

    def __init__(self, make: Callable[[int], Plan], count: int, order: Sequence[int]) -> None:
        self.size, missing = 0, count
        while missing > 0 or not self.size:
            self.size += max(1, missing) * len(order)
            plan = make(self.size)
            owned_ranges = [plan.owned_ranges(place) for place in range(len(order))]
            missing = count - min(sum(stop - start for start, stop in ranges) for ranges in owned_ranges)
        self._ranges = {
            rank: list(_first_elements(ranges, count)) for rank, ranges in zip(order, owned_ranges, strict=True)
        }
        #: True if the vector consists of the parts in the order of the ranks, and of nothing else.
        self.is_in_rank_order = self.size == count * len(order) and all(
            self._ranges[rank] == [(rank * count, (rank + 1) * count)] for rank in order
        )

    def put(self, vector: torch.Tensor, rank: int, part: torch.Tensor) -> None:
        """Copy the part of ``rank`` into the vector. Both are flat."""
        for offset, start, stop in self._pieces(rank):
            vector[start:stop] = part[offset : offset + stop - start]

    def get(self, vector: torch.Tensor, rank: int, part: torch.Tensor) -> None:
        """Copy the part of ``rank`` from the vector into ``part``. Both are flat."""
        for offset, start, stop in self._pieces(rank):
            part[offset : offset + stop - start] = vector[start:stop]

    def _pieces(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces of a part as (offset in the part, start in the vector, stop in the vector)."""
        offset = 0
        for start, stop in self._ranges[rank]:
            yield offset, start, stop
            offset += stop - start


def _first_elements(ranges: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the first ``count`` elements of ``ranges``."""
    for start, stop in ranges:
        stop = min(stop, start + count)
        if start < stop:
            yield start, stop
        count -= stop - start
