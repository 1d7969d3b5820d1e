"""Exactly the k largest magnitudes, for about one pass over the vector on the CPU.

The bits of floating point numbers without their sign are integers in the order of the magnitudes, with infinity above all that
is finite and NaN above that. All comparisons are of these, so no value needs care.

1. A sample tells a floor that almost certainly more than k elements are above, but few more.
2. One pass, in pieces that stay in a core's cache, finds those above: the candidates.
3. The k-th largest of the candidates is the threshold: what is above it, and of what is equal to it the first ones.

If fewer than k are above the floor, those that are equal to it may fill up: many elements are equal, such as zeros. If they do
not, the sample misled, and a histogram of the magnitudes' upper bits tells a floor that is right. So there are never more than
four passes. What is selected depends on the vector alone, whichever way it was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

#: Elements of a piece: its magnitudes and its mask stay in the cache of a core, and a piece is worth starting threads for.
PIECE = 1 << 18
#: Elements of the sample. What is shorter than four times as many is not worth sampling.
SAMPLE = 1 << 14
#: The floor lies this many standard deviations below where the k-th largest magnitude is expected.
DEVIATIONS = 5
#: Upper bits of a magnitude, by which the histogram counts.
HISTOGRAM_BITS = 12

_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
#: Below all magnitudes.
_NO_FLOOR = -1


def select(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of k elements with the k largest magnitudes, ascending, for 0 < k < d; of equal ones the first.

    On CUDA devices by the kernels of ``triton_select.py``, where Triton is installed; on others by ``torch.topk``, whose
    choice among equal ones is its own.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(_Bits(values).largest(k))
    if values.is_cuda:
        try:
            from sparkdl_comm.compress import triton_select
        except ImportError:  # torch for CUDA can be installed without it
            return by_topk(values, k)
        return triton_select.select(values, k)
    return by_topk(values, k)


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
    """The bits of a vector on the CPU, piece by piece."""

    def __init__(self, values: torch.Tensor) -> None:
        self._bits = values.view(_INTEGERS[values.dtype])
        self._without_sign = torch.iinfo(self._bits.dtype).max
        self._count = values.numel()
        piece = min(PIECE, self._count)
        self._magnitudes = torch.empty(piece, dtype=self._bits.dtype)
        self._mask = torch.empty(piece, dtype=torch.bool)

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
        sample = self._bits[torch.from_numpy(sample_positions(self._count))].numpy() & self._without_sign
        expected = SAMPLE * k / self._count
        # Where few or none are expected, their number is not normally distributed: hence one time more DEVIATIONS.
        rank = math.ceil(expected + DEVIATIONS * (math.sqrt(expected) + 1))
        return int(np.partition(sample, SAMPLE - rank)[SAMPLE - rank]) if rank < SAMPLE else _NO_FLOOR

    def _pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Where each piece begins, and its magnitudes, in memory that the next one's overwrite."""
        for start in range(0, self._count, PIECE):
            piece = self._bits[start : start + PIECE]
            yield start, torch.bitwise_and(piece, self._without_sign, out=self._magnitudes[: len(piece)])

    def _above(self, floor: int) -> tuple[np.ndarray, np.ndarray]:
        """The elements whose magnitude is above the floor, and their magnitudes."""
        indices: list[np.ndarray] = []
        found: list[np.ndarray] = []
        for start, magnitudes in self._pieces():
            mask = torch.gt(magnitudes, floor, out=self._mask[: len(magnitudes)])
            here = np.flatnonzero(mask.numpy())
            indices.append(here + start)
            found.append(magnitudes.numpy()[here])
        return np.concatenate(indices), np.concatenate(found)

    def _first_equal(self, magnitude: int, limit: int) -> np.ndarray:
        """The first elements of that magnitude, ``limit`` at most."""
        found: list[np.ndarray] = []
        missing = limit
        for start, magnitudes in self._pieces():
            mask = torch.eq(magnitudes, magnitude, out=self._mask[: len(magnitudes)])
            here = np.flatnonzero(mask.numpy())[:missing]
            found.append(here + start)
            missing -= len(here)
            if not missing:
                break
        return np.concatenate(found)

    def _counted_floor(self, k: int) -> int:
        """The highest magnitude that ends a bin of the histogram and that k elements or more are above."""
        shift = self._without_sign.bit_length() - HISTOGRAM_BITS
        bins = torch.zeros(1 << HISTOGRAM_BITS, dtype=torch.int64)
        for _, magnitudes in self._pieces():
            bins += torch.bincount(magnitudes >> shift, minlength=len(bins))
        from_the_top = np.cumsum(bins.numpy()[::-1])
        bin_of_kth = len(bins) - 1 - int(np.searchsorted(from_the_top, k))
        return (bin_of_kth << shift) - 1


def _cut(indices: np.ndarray, magnitudes: np.ndarray, k: int) -> np.ndarray:
    """Those with the k largest magnitudes, in their order; of equal ones the first."""
    if len(indices) == k:
        return indices
    threshold = np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k]
    kept = magnitudes > threshold
    equal = np.flatnonzero(magnitudes == threshold)
    kept[equal[: k - np.count_nonzero(kept)]] = True
    return indices[kept]
