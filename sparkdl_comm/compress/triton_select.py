"""Exactly the k largest magnitudes on CUDA devices: kernels in Triton.

As on the CPU (``exact.py``) magnitudes are compared as integers, their bits without the sign. Level by level, a histogram of
some of the bits, among the elements that agree with the k-th largest in all bits above, tells these bits of the k-th largest.
The last one tells, too, how many of the elements that are equal to it are selected: the first ones. Then a pass counts what
each block selects, and one writes the indices to where the counts say. So the vector is read five times (values of 16 bits:
four times), and the host never waits for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Elements that one program of a kernel reads.
BLOCK = 8192
#: The magnitude's bits that each level tells, from the top. A histogram must fit into a multiprocessor's memory.
_LEVELS = {4: (11, 10, 10), 2: (8, 7)}
_INTEGERS = {4: torch.int32, 2: torch.int16}


@triton.jit
def _magnitudes(
    bits: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr, WITHOUT_SIGN: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    return offsets, inside, tl.load(bits + offsets, mask=inside, other=0).to(tl.int32) & WITHOUT_SIGN


@triton.jit
def _histogram(
    bits: tl.tensor,
    count: tl.tensor,
    known: tl.tensor,
    bins: tl.tensor,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WITHOUT_SIGN: tl.constexpr,
) -> None:
    """Adds to ``bins`` how often the WIDTH bits from SHIFT on have each value, of magnitudes with bits ``known`` above."""
    _, inside, magnitudes = _magnitudes(bits, count, BLOCK, WITHOUT_SIGN)
    counted = inside & ((magnitudes >> (SHIFT + WIDTH)) == tl.load(known))
    numbers = tl.where(counted, (magnitudes >> SHIFT) & ((1 << WIDTH) - 1), 0)
    found = tl.histogram(numbers, 1 << WIDTH)
    places = tl.arange(0, 1 << WIDTH)
    # What is not counted is in bin 0.
    found = tl.where(places == 0, found - (BLOCK - tl.sum(counted.to(tl.int32))), found)
    tl.atomic_add(bins + places, found, mask=found > 0)


@triton.jit
def _count(
    bits: tl.tensor,
    count: tl.tensor,
    threshold: tl.tensor,
    above: tl.tensor,
    equal: tl.tensor,
    BLOCK: tl.constexpr,
    WITHOUT_SIGN: tl.constexpr,
) -> None:
    """How many magnitudes of each block are above the threshold, and how many are equal to it."""
    _, inside, magnitudes = _magnitudes(bits, count, BLOCK, WITHOUT_SIGN)
    limit = tl.load(threshold)
    tl.store(above + tl.program_id(0), tl.sum((inside & (magnitudes > limit)).to(tl.int32)))
    tl.store(equal + tl.program_id(0), tl.sum((inside & (magnitudes == limit)).to(tl.int32)))


@triton.jit
def _write(
    bits: tl.tensor,
    count: tl.tensor,
    threshold: tl.tensor,
    quota: tl.tensor,
    above_before: tl.tensor,
    equal_before: tl.tensor,
    indices: tl.tensor,
    BLOCK: tl.constexpr,
    WITHOUT_SIGN: tl.constexpr,
) -> None:
    """Writes the indices of what is above the threshold, and of the first ``quota`` that are equal to it, in their order."""
    offsets, inside, magnitudes = _magnitudes(bits, count, BLOCK, WITHOUT_SIGN)
    limit, most = tl.load(threshold), tl.load(quota)
    above = (inside & (magnitudes > limit)).to(tl.int32)
    equal = (inside & (magnitudes == limit)).to(tl.int32)
    # Of the elements before each one.
    larger = tl.load(above_before + tl.program_id(0)) + tl.cumsum(above) - above
    as_large = tl.load(equal_before + tl.program_id(0)) + tl.cumsum(equal) - equal
    selected = (above == 1) | ((equal == 1) & (as_large < most))
    tl.store(indices + larger + tl.minimum(as_large, most), offsets, mask=selected)


def select(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of k elements with the k largest magnitudes, ascending, for 0 < k < d; of equal ones the first.

    ``values`` (shape [d]; float32, float16 or bfloat16) is on a CUDA device, or, under Triton's interpreter, on the CPU.
    """
    size, count, device = values.element_size(), values.numel(), values.device
    bits = values.contiguous().view(_INTEGERS[size])
    levels = _LEVELS[size]
    known = torch.zeros(1, dtype=torch.int64, device=device)
    left = torch.full((1,), k, dtype=torch.int64, device=device)
    grid = (triton.cdiv(count, BLOCK),)
    sizes = {"BLOCK": BLOCK, "WITHOUT_SIGN": (1 << sum(levels)) - 1}
    with torch.cuda.device_of(values):
        for level, width in enumerate(levels):
            bins = torch.zeros(1 << width, dtype=torch.int32, device=device)
            _histogram[grid](bits, count, known, bins, SHIFT=sum(levels[level + 1 :]), WIDTH=width, **sizes)
            # How many have that bin's bits or larger ones, from the largest on.
            reaching = bins.flip(0).cumsum(0)
            place = torch.searchsorted(reaching, left)
            number = len(bins) - 1 - place
            left = left - (reaching[place] - bins[number])
            known = (known << width) | number
        above, equal = torch.empty((2, *grid), dtype=torch.int32, device=device)
        _count[grid](bits, count, known, above, equal, **sizes)
        above_before, equal_before = above.cumsum(0) - above, equal.cumsum(0) - equal
        indices = torch.empty(k, dtype=torch.int64, device=device)
        _write[grid](bits, count, known, left, above_before, equal_before, indices, **sizes)
    return indices
