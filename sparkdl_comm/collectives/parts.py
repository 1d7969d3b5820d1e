"""One part per rank of a vector that a plan scatters or gathers, wherever the plan has the rank own it.

Algorithms let ranks own what suits them: BML many pieces each, a ring on BCube not in the order of the ranks, and some own a
few elements more than others. Callers of reduce-scatter and all-gather have parts of equal length. So the plan's vector is as
much longer as it takes; a part lies in the ranges that its rank owns, from their beginning, and what is left of them is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from sparkdl_comm.collectives.plan import Plan


class Parts:
    """Where the parts of the gang's ranks lie in a vector of :attr:`size` elements.

    :param make: gives the plan for a vector of so many elements.
    :param count: elements of a part.
    :param order: ``order[place]``: the gang's rank that is rank ``place`` of the plans.
    """

    def __init__(self, make: Callable[[int], Plan], count: int, order: Sequence[int]) -> None:
        self.size, short = 0, count
        while short > 0 or not self.size:
            self.size += max(1, short) * len(order)
            plan = make(self.size)
            owned = [plan.owned(place) for place in range(len(order))]
            short = count - min(sum(stop - start for start, stop in ranges) for ranges in owned)
        self._ranges = {rank: list(_first(ranges, count)) for rank, ranges in zip(order, owned, strict=True)}
        #: The vector is nothing but the parts, one after another.
        self.is_plain = self.size == count * len(order) and all(
            self._ranges[rank] == [(rank * count, (rank + 1) * count)] for rank in order
        )

    def put(self, vector: torch.Tensor, rank: int, part: torch.Tensor) -> None:
        """Writes ``part`` where it lies in ``vector``; both flat."""
        for here, start, stop in self._pieces(rank):
            vector[start:stop] = part[here : here + stop - start]

    def get(self, vector: torch.Tensor, rank: int, part: torch.Tensor) -> None:
        """Reads it from there."""
        for here, start, stop in self._pieces(rank):
            part[here : here + stop - start] = vector[start:stop]

    def _pieces(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """(where in the part, where in the vector from, to)"""
        here = 0
        for start, stop in self._ranges[rank]:
            yield here, start, stop
            here += stop - start


def _first(ranges: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """The first ``count`` elements of the ranges."""
    for start, stop in ranges:
        stop = min(stop, start + count)
        if start < stop:
            yield start, stop
        count -= stop - start
