"""How layers, or parameters, are grouped into buckets, which travel one after another. (The iBatch paper, the conf and the
wire call such a bucket of layers a batch.)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def in_buckets(sizes: Iterable[float], least: float, first: float | None = None) -> list[range]:
    """Cuts a row of items into buckets of consecutive ones: positions, from 0. Each has ``least`` of their sizes at least, but
    the last one, which has what is left. ``first``: what the first bucket has at least, if that is another size."""
    buckets: list[range] = []
    begin, end, size, wanted = 0, 0, 0.0, least if first is None else first
    for end, more in enumerate(sizes, 1):
        size += more
        if size >= wanted:
            buckets.append(range(begin, end))
            begin, size, wanted = end, 0.0, least
    return buckets if begin == end else [*buckets, range(begin, end)]


class LayerBuckets:
    """Buckets of consecutive layers, numbered from 0 in the order in which they travel.

    ``pairs``: first and last layer of each bucket, counted from 1, as planner and executor have them. ``layers``: those
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
    """Counts the outstanding items of each bucket. ``parts``: for each item that is expected, such as a parameter, its
    layer."""

    def __init__(self, buckets: LayerBuckets, parts: Sequence[int]) -> None:
        self._of = buckets.of
        self._left = [0] * len(buckets)
        for layer in parts:
            self._left[self._of[layer]] += 1

    def arrived(self, layer: int) -> int | None:
        """Counts one more item of ``layer``. Returns the bucket that is complete with it, if one is."""
        bucket = self._of[layer]
        self._left[bucket] -= 1
        return None if self._left[bucket] else bucket
