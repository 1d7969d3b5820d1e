"""Grouping of layers or parameters into buckets that are sent one after another.

The iBatch paper, the conf and the wire call a bucket of layers a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

#: Share of a model, from its end, whose parameters may be gathered while backward is still running.
EARLY_SHARE = 1 / 3


def count_early_buckets(sizes: Sequence[float]) -> int:
    """Return how many buckets lie wholly in the last :data:`EARLY_SHARE` of a model. ``sizes``: of the buckets, in the order
    of backward.
    """
    cumulative = itertools.accumulate(sizes)
    most = sum(sizes) * EARLY_SHARE
    return sum(size <= most for size in cumulative)


def group_into_buckets(sizes: Iterable[float], least: float, first: float | None = None) -> list[range]:
    """Split consecutive items into buckets: ranges of positions, from 0.

    :param sizes: sizes of the items.
    :param least: least size of a bucket. Only the last bucket may be smaller.
    :param first: least size of the first bucket. None: ``least``.
    """
    buckets: list[range] = []
    begin, end, size, least_now = 0, 0, 0.0, least if first is None else first
    for end, more in enumerate(sizes, 1):
        size += more
        if size >= least_now:
            buckets.append(range(begin, end))
            begin, size, least_now = end, 0.0, least
    return buckets if begin == end else [*buckets, range(begin, end)]


class LayerBuckets:
    """Buckets of consecutive layers, numbered from 0 in the order in which they are sent.

    ``pairs``: first and last layer of each bucket, counted from 1, as planner and executor use them. ``layers``: layers
    of each bucket, counted from 0. ``of``: for each layer, the number of its bucket.
    """

    def __init__(self, pairs: Sequence[Sequence[int]]) -> None:
        self.pairs = [list(pair) for pair in pairs]
        self.layers = [range(first - 1, last) for first, last in self.pairs]
        numbers = {layer: number for number, bucket in enumerate(self.layers) for layer in bucket}
        self.of = [numbers[layer] for layer in range(len(numbers))]

    def __len__(self) -> int:
        return len(self.pairs)


class Countdown:
    """Counter of the outstanding items of each bucket. ``parts``: the layer of each expected item, such as a parameter."""

    def __init__(self, buckets: LayerBuckets, parts: Sequence[int]) -> None:
        self._of = buckets.of
        self._outstanding = [0] * len(buckets)
        for layer in parts:
            self._outstanding[self._of[layer]] += 1

    def arrived(self, layer: int) -> int | None:
        """Count one more item of ``layer``. Return its bucket if the bucket is complete now, else None."""
        bucket = self._of[layer]
        self._outstanding[bucket] -= 1
        return None if self._outstanding[bucket] else bucket
