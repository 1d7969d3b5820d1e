"""Exact selection of the k largest magnitudes, with about one pass over the vector on the CPU.

Without their sign bit, floating point numbers are integers in the order of the magnitudes. Infinity is above all finite
numbers, and NaN is above infinity. All comparisons use these integers, so no value needs special care.

1. A sample gives a floor. Almost certainly more than k elements are above the floor, but not many more.
2. One pass, in pieces that fit into a cache, finds the elements above the floor: the candidates.
3. The k-th largest candidate is the threshold. The selection has all elements above the threshold, and the first ones
   that are equal to it.

Fewer than k elements may be above the floor because many elements are equal to it, such as zeros. Then the first of
these fill the selection up. If they do not suffice, the sample misled, and a histogram of the magnitudes' upper bits
gives a correct floor. So there are at most four passes. The selection depends on the vector only, not on how it was
found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

#: Elements of a piece: few enough that its magnitudes fit into a cache, enough that threads seldom wait for Python's lock.
PIECE_ELEMENTS = 1 << 19
#: Elements of the sample. A vector with fewer than four times as many is not sampled.
SAMPLE_ELEMENTS = 1 << 14
#: Standard deviations from the expected place of the k-th largest magnitude down to the floor.
DEVIATIONS = 5
#: Number of upper bits of a magnitude that select a bin of the histogram.
HISTOGRAM_BITS = 12

_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
#: Floor below all magnitudes.
_NO_FLOOR = -1

R = TypeVar("R")


def select(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of k elements with the k largest magnitudes, ascending, for 0 < k < d.

    The first ones of equal magnitudes are selected. On other devices than the CPU ``torch.topk`` selects, and its
    choice among equal magnitudes is its own. GPU kernels that counted the magnitudes' bits took three times as long
    (python/benchmarks/compression/README.md).
    """
    return torch.from_numpy(_MagnitudeBits(values).largest(k)) if values.device.type == "cpu" else by_topk(values, k)


def by_topk(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return a selection by ``torch.topk``, in the form of :func:`select`."""
    return torch.topk(values.abs(), k, sorted=False).indices.sort().values


def sample_positions(count: int) -> NDArray[np.int64]:
    """Return the positions to sample in a vector of ``count`` elements, the same ones on each call.

    Each stretch of the vector has one position, at random, so that a periodic vector does not mislead.
    """
    drawn = np.random.default_rng(0).random(SAMPLE_ELEMENTS)
    return ((np.arange(SAMPLE_ELEMENTS) + drawn) * (count / SAMPLE_ELEMENTS)).astype(np.int64)


class _MagnitudeBits:
    """Bits of a vector on the CPU, read piece by piece.

    As many threads as torch has each read a part of the vector with numpy, which lets other threads run meanwhile.
    torch's operators, which split each piece among threads, take longer: their threads meet after every piece.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._bits: NDArray[Any] = values.view(_INTEGERS[values.dtype]).numpy()
        self._without_sign = int(np.iinfo(self._bits.dtype).max)
        self._count = values.numel()

    def largest(self, k: int) -> NDArray[np.intp]:
        floor = self._floor(k)
        candidates, magnitudes = self._above(floor)
        missing = k - len(candidates)
        if missing > 0:
            equal = self._first_equal(floor, missing)
            if len(equal) == missing:
                return np.sort(np.concatenate([candidates, equal]))
            candidates, magnitudes = self._above(self._counted_floor(k))
        return _keep_largest(candidates, magnitudes, k)

    def _floor(self, k: int) -> int:
        """Return a magnitude that more than k elements exceed, judging by the sample; _NO_FLOOR if sampling is no use."""
        if self._count < 4 * SAMPLE_ELEMENTS:
            return _NO_FLOOR
        sample = self._bits[sample_positions(self._count)] & self._without_sign
        expected = SAMPLE_ELEMENTS * k / self._count
        # A small count is not normally distributed: hence DEVIATIONS once more.
        rank = math.ceil(expected + DEVIATIONS * (math.sqrt(expected) + 1))
        return (
            int(np.partition(sample, SAMPLE_ELEMENTS - rank)[SAMPLE_ELEMENTS - rank])
            if rank < SAMPLE_ELEMENTS
            else _NO_FLOOR
        )

    def _above(self, floor: int) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the indices of the elements whose magnitude is above the floor, and their magnitudes."""

        def of_part(first: int, stop: int) -> list[tuple[NDArray[np.intp], NDArray[Any]]]:
            mask = np.empty(min(PIECE_ELEMENTS, stop - first), bool)
            found = []
            for start, magnitudes in self._pieces(first, stop):
                indices = np.flatnonzero(np.greater(magnitudes, floor, out=mask[: len(magnitudes)]))
                found.append((indices + start, magnitudes[indices]))
            return found

        found = self._in_parts(of_part)
        return np.concatenate([indices for indices, _ in found]), np.concatenate([large for _, large in found])

    def _first_equal(self, magnitude: int, limit: int) -> NDArray[np.intp]:
        """Return the indices of the first elements of that magnitude, at most ``limit`` of them."""
        found: list[NDArray[np.intp]] = []
        missing = limit
        for start, magnitudes in self._pieces(0, self._count):
            indices = np.flatnonzero(magnitudes == magnitude)[:missing]
            found.append(indices + start)
            missing -= len(indices)
            if not missing:
                break
        return np.concatenate(found)

    def _counted_floor(self, k: int) -> int:
        """Return the highest magnitude that ends a bin of the histogram and that at least k elements exceed."""
        shift = self._without_sign.bit_length() - HISTOGRAM_BITS

        def of_part(first: int, stop: int) -> list[NDArray[np.intp]]:
            pieces = self._pieces(first, stop)
            return [np.bincount(magnitudes >> shift, minlength=1 << HISTOGRAM_BITS) for _, magnitudes in pieces]

        bins = np.sum(self._in_parts(of_part), axis=0)
        counts_from_top = np.cumsum(bins[::-1])
        bin_of_kth = len(bins) - 1 - int(np.searchsorted(counts_from_top, k))
        return (bin_of_kth << shift) - 1

    def _pieces(self, first: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield each piece of a part as (start, magnitudes). The next piece overwrites the memory of the magnitudes."""
        memory = np.empty(min(PIECE_ELEMENTS, stop - first), self._bits.dtype)
        for start in range(first, stop, PIECE_ELEMENTS):
            piece = self._bits[start : min(start + PIECE_ELEMENTS, stop)]
            yield start, np.bitwise_and(piece, self._without_sign, out=memory[: len(piece)])

    def _in_parts(self, work: Callable[[int, int], list[R]]) -> list[R]:
        """Return the concatenated results of ``work(first, stop)`` for all parts, in their order."""
        pieces = -(-self._count // PIECE_ELEMENTS)
        # A thread with fewer than two pieces costs more than it saves.
        parts = max(1, min(torch.get_num_threads(), pieces // 2))
        bounds = [min(number * pieces // parts * PIECE_ELEMENTS, self._count) for number in range(parts + 1)]
        if parts == 1:
            return work(*bounds)
        # New threads for each call: the threads of a global pool would be missing after a fork.
        with ThreadPoolExecutor(parts - 1) as threads:
            others = [threads.submit(work, first, stop) for first, stop in zip(bounds[1:], bounds[2:], strict=False)]
            return sum((other.result() for other in others), work(bounds[0], bounds[1]))


def _keep_largest(indices: NDArray[np.intp], magnitudes: NDArray[Any], k: int) -> NDArray[np.intp]:
    """Return the indices of the k largest magnitudes, in their order; the first ones of equal magnitudes."""
    if len(indices) == k:
        return indices
    threshold = np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k]
    kept: NDArray[np.bool_] = magnitudes > threshold
    equal = np.flatnonzero(magnitudes == threshold)
    kept[equal[: k - np.count_nonzero(kept)]] = True
    return indices[kept]
