"""MSTopK: the k largest magnitudes, approximately, by a search for two thresholds (Algorithm 1 of the MSTopK paper).

The search halves the range between the mean and the largest magnitude, and remembers the threshold that the most elements
reach which are not more than k, the upper one, and the one that the fewest reach which are more than k, the lower one. What
reaches the upper one is selected, and a run of what lies between fills it up to k. Where the run begins is random.

What the paper leaves open:

* no threshold is reached by k elements or fewer, as when the largest magnitude occurs more than k times: the upper one is
  infinite, and all are of the band;
* fewer than k elements reach the mean: no lower threshold is found, it stays 0, and the band has all that remains;
* elements that are not finite have no mean: they are selected first, and the search is among the others. If there are more
  than k, the first k of them are selected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

#: The paper's number of rounds.
ROUNDS = 30


class Band(NamedTuple):
    """What a search ends with: ``above`` elements, k at most, are at least ``upper``; those of the band at least ``lower``."""

    upper: float
    lower: float
    above: int


def search(magnitudes: torch.Tensor, k: int, rounds: int = ROUNDS) -> Band:
    """The thresholds for the k largest of ``magnitudes`` (shape [d], float32, all finite, 0 < k < d).

    It ends before its last round when exactly k elements reach a threshold: no later round could change what is selected.
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
    """Indices of k elements, ascending, for 0 < k < d: all that reach the upper threshold, the others from the band below it.

    :param generator: draws where in the band the run begins; None: torch's own.
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
    """The upper threshold that :func:`select` ends at: it selects all elements that are larger."""
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
