"""MSTopK: approximate selection of the k largest magnitudes, by a search for two thresholds (Algorithm 1 of its paper).

The search halves the range between the mean and the largest magnitude. It keeps two thresholds. The upper threshold is
reached by at most k elements, but by as many of them as possible. The lower threshold is reached by more than k
elements, but by as few as possible. The selection has all elements that reach the upper threshold. A run of elements
between the thresholds, the band, fills it up to k. The run starts at a random place.

Cases that the paper leaves open:

* No threshold is reached by k elements or fewer, as when the largest magnitude occurs more than k times. Then the upper
  threshold is infinite, and all elements are in the band.
* Fewer than k elements reach the mean. Then no lower threshold is found. It stays 0, and the band has all other
  elements.
* Elements that are not finite have no mean. They are selected first, and the search is among the others. If there are
  more than k, the first k of them are selected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

#: Number of rounds of the search, as in the paper.
ROUNDS = 30


class Band(NamedTuple):
    """Result of a search: ``above`` elements, at most k, reach ``upper``. The elements of the band reach ``lower``."""

    upper: float
    lower: float
    above: int


def search(magnitudes: torch.Tensor, k: int, rounds: int = ROUNDS) -> Band:
    """Return the thresholds for the k largest of ``magnitudes`` (shape [d], float32, all finite, 0 < k < d).

    The search ends early when exactly k elements reach a threshold: later rounds could not change the selection.
    """
    # In float32 the sum could overflow.
    mean, largest = float(magnitudes.mean(dtype=torch.float64)), float(magnitudes.max())
    low, high = 0.0, 1.0
    above, upper = 0, math.inf
    reached, lower = magnitudes.numel(), 0.0
    for _ in range(rounds):
        ratio = low + (high - low) / 2
        threshold = mean + ratio * (largest - mean)
        count = int(torch.count_nonzero(magnitudes >= threshold))
        if count <= k:
            high = ratio
            if count > above:
                above, upper = count, threshold
            if count == k:
                break
        else:
            low = ratio
            if count < reached:
                reached, lower = count, threshold
    return Band(upper, lower, above)


def select(
    values: torch.Tensor, k: int, generator: torch.Generator | None = None, rounds: int = ROUNDS
) -> torch.Tensor:
    """Return the indices of k elements, ascending, for 0 < k < d.

    The selection has all elements that reach the upper threshold, and others from the band below it.

    :param generator: draws where in the band the run begins; None for torch's default.
    """
    magnitudes = values.abs().float()
    finite = magnitudes.isfinite()
    if not finite.all():
        first, others = (~finite).nonzero().flatten(), finite.nonzero().flatten()
        if len(first) >= k:
            return first[:k]
        chosen = others[_fill(magnitudes[others], k - len(first), generator, rounds)]
        return torch.cat([first, chosen]).sort().values
    return _fill(magnitudes, k, generator, rounds)


def upper(values: torch.Tensor, k: int, rounds: int = ROUNDS) -> float:
    """Return the upper threshold at which :func:`select` ends. It selects all larger elements."""
    magnitudes = values.abs().float()
    finite = magnitudes.isfinite()
    left = k - int(torch.count_nonzero(~finite))
    return search(magnitudes[finite], left, rounds).upper if left > 0 else math.inf


def _fill(magnitudes: torch.Tensor, k: int, generator: torch.Generator | None, rounds: int) -> torch.Tensor:
    band = search(magnitudes, k, rounds)
    reach = magnitudes >= band.upper
    missing = k - band.above
    if missing:
        between = ((magnitudes >= band.lower) & ~reach).nonzero().flatten()
        start = int(torch.randint(len(between) - missing + 1, (), generator=generator))
        reach[between[start : start + missing]] = True
    return reach.nonzero().flatten()
