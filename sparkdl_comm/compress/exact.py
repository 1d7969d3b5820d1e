"""Exactly the k largest magnitudes, for about one pass over the vector on the CPU.

The bits of floating point numbers without their sign are integers in the order of the magnitudes, with infinity above all that
is finite and NaN above that. All comparisons are of these, so no value needs care.

1. A sample tells a floor that almost certainly more than k elements are above, but few more.
2. One pass, in pieces that stay in a cache, finds those above: the candidates.
3. The k-th largest of the candidates is the threshold: what is above it, and of what is equal to it the first ones.

If fewer than k are above the floor, those that are equal to it may fill up: many elements are equal, such as zeros. If they do
not, the sample misled, and a histogram of the magnitudes' upper bits tells a floor that is right. So there are never more than
four passes. What is selected depends on the vector alone, whichever way it was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

#: Elements of a piece: its magnitudes stay in a cache, and threads that share one interpreter seldom wait for it.
PIECE = 1 << 19
#: Elements of the sample. What is shorter than four times as many is not worth sampling.
SAMPLE = 1 << 14
#: The floor lies this many standard deviations below where the k-th largest magnitude is expected.
DEVIATIONS = 5
#: Upper bits of a magnitude, by which the histogram counts.
HISTOGRAM_BITS = 12

_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
#: Below all magnitudes.
_NO_FLOOR = -1

R = TypeVar("R")


def select(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of k elements with the k largest magnitudes, ascending, for 0 < k < d; of equal ones the first.

    On other devices than the CPU by ``torch.topk``, whose choice among equal ones is its own: kernels for GPUs that counted
    the magnitudes' bits took three times as long as it does (python/results/compression.md).
    """
    return torch.from_numpy(_Bits(values).largest(k)) if values.device.type == "cpu" else by_topk(values, k)


def by_topk(values: torch.Tensor, k: int) -> torch.Tensor:
    """As :func:`select`, by ``torch.topk``."""
    return torch.topk(values.abs(), k, sorted=False).indices.sort().values


def sample_positions(count: int) -> np.ndarray:
    """Which elements of ``count`` are sampled: one at random of each stretch, so that no period of the vector misleads.

    The same ones on each call.
    """
    drawn = np.random.default_rng(0).random(SAMPLE)
    return ((np.arange(SAMPLE) + drawn) * (count / SAMPLE)).astype(np.int64)


class _Bits:
    """The bits of a vector on the CPU, piece by piece.

    In as many threads as torch takes, each a part of the vector by numpy, which lets other threads run meanwhile. Operators of
    torch, which share each piece among threads, take longer: the threads meet after every piece.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._bits: np.ndarray = values.view(_INTEGERS[values.dtype]).numpy()
        self._without_sign = int(np.iinfo(self._bits.dtype).max)
        self._count = values.numel()

    def largest(self, k: int) -> np.ndarray:
        floor = self._floor(k)
        candidates, magnitudes = self._above(floor)
        missing = k - len(candidates)
        if missing > 0:
            equal = self._first_equal(floor, missing)
            if len(equal) == missing:
                return np.sort(np.concatenate([candidates, equal]))
            candidates, magnitudes = self._above(self._counted_floor(k))
        return _cut(candidates, magnitudes, k)

    def _floor(self, k: int) -> int:
        """A magnitude that by the sample more than k elements are above; below all magnitudes, if sampling is no use."""
        if self._count < 4 * SAMPLE:
            return _NO_FLOOR
        sample = self._bits[sample_positions(self._count)] & self._without_sign
        expected = SAMPLE * k / self._count
        # Where few or none are expected, their number is not normally distributed: hence one time more DEVIATIONS.
        rank = math.ceil(expected + DEVIATIONS * (math.sqrt(expected) + 1))
        return int(np.partition(sample, SAMPLE - rank)[SAMPLE - rank]) if rank < SAMPLE else _NO_FLOOR

    def _above(self, floor: int) -> tuple[np.ndarray, np.ndarray]:
        """The elements whose magnitude is above the floor, and their magnitudes."""

        def of_part(first: int, stop: int) -> list[tuple[np.ndarray, np.ndarray]]:
            mask = np.empty(min(PIECE, stop - first), bool)
            found = []
            for start, magnitudes in self._pieces(first, stop):
                here = np.flatnonzero(np.greater(magnitudes, floor, out=mask[: len(magnitudes)]))
                found.append((here + start, magnitudes[here]))
            return found

        found = self._in_parts(of_part)
        return np.concatenate([indices for indices, _ in found]), np.concatenate([large for _, large in found])

    def _first_equal(self, magnitude: int, limit: int) -> np.ndarray:
        """The first elements of that magnitude, ``limit`` at most."""
        found: list[np.ndarray] = []
        missing = limit
        for start, magnitudes in self._pieces(0, self._count):
            here = np.flatnonzero(magnitudes == magnitude)[:missing]
            found.append(here + start)
            missing -= len(here)
            if not missing:
                break
        return np.concatenate(found)

    def _counted_floor(self, k: int) -> int:
        """The highest magnitude that ends a bin of the histogram and that k elements or more are above."""
        shift = self._without_sign.bit_length() - HISTOGRAM_BITS

        def of_part(first: int, stop: int) -> list[np.ndarray]:
            pieces = self._pieces(first, stop)
            return [np.bincount(magnitudes >> shift, minlength=1 << HISTOGRAM_BITS) for _, magnitudes in pieces]

        bins = np.sum(self._in_parts(of_part), axis=0)
        from_the_top = np.cumsum(bins[::-1])
        bin_of_kth = len(bins) - 1 - int(np.searchsorted(from_the_top, k))
        return (bin_of_kth << shift) - 1

    def _pieces(self, first: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """Where each piece of a part begins, and its magnitudes, in memory that the next one's overwrite."""
        memory = np.empty(min(PIECE, stop - first), self._bits.dtype)
        for start in range(first, stop, PIECE):
            piece = self._bits[start : min(start + PIECE, stop)]
            yield start, np.bitwise_and(piece, self._without_sign, out=memory[: len(piece)])

    def _in_parts(self, work: Callable[[int, int], list[R]]) -> list[R]:
        """What ``work(first, stop)`` returns for all parts, in their order."""
        pieces = -(-self._count // PIECE)
        # A thread that is not worth two pieces costs more than it saves.
        parts = max(1, min(torch.get_num_threads(), pieces // 2))
        bounds = [min(number * pieces // parts * PIECE, self._count) for number in range(parts + 1)]
        if parts == 1:
            return work(*bounds)
        # Threads of this call alone: those of a pool would be missing after a fork.
        with ThreadPoolExecutor(parts - 1) as threads:
            others = [threads.submit(work, first, stop) for first, stop in zip(bounds[1:], bounds[2:], strict=False)]
            return sum((other.result() for other in others), work(bounds[0], bounds[1]))


def _cut(indices: np.ndarray, magnitudes: np.ndarray, k: int) -> np.ndarray:
    """Those with the k largest magnitudes, in their order; of equal ones the first."""
    if len(indices) == k:
        return indices
    threshold = np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k]
    kept = magnitudes > threshold
    equal = np.flatnonzero(magnitudes == threshold)
    kept[equal[: k - np.count_nonzero(kept)]] = True
    return indices[kept]
