"""Selection of the k elements of a gradient with the largest magnitudes, by operators that have names.

All operators rank infinite elements and NaN above finite elements. A gradient that is not finite, of a step that fp16
must skip, is therefore still not finite after selection, unless k is 0.

**mstopk** is approximate. It searches for two thresholds (MSTopK, Algorithm 1 of the paper named in ``hitopk.py``). The
search halves the range between the mean and the largest magnitude. The upper threshold is reached by at most k
elements, but by as many of them as possible. The lower threshold is reached by more than k elements, but by as few as
possible. The selection has all elements that reach the upper threshold. A run of elements between the thresholds, the
band, fills it up to k. The run starts at a random place. Cases that the paper leaves open:

* No threshold is reached by k elements or fewer, as when the largest magnitude occurs more than k times. Then the upper
  threshold is infinite, and all elements are in the band.
* Fewer than k elements reach the mean. Then no lower threshold is found. It stays 0, and the band has all other
  elements.
* Elements that are not finite have no mean. They are selected first, and the search is among the others. If there are
  more than k, the first k of them are selected.

**dgc** samples twice (Deep Gradient Compression, Lin et al. 2018, section 5). A sample of d' elements is drawn at
random. Its k d'/d largest elements give a threshold for all d elements. If more than k elements reach the threshold,
the k largest of them are selected. If fewer do, the threshold is lowered until k elements reach it. The paper accepts a
smaller count. Here the count is always k, so the selection has the k largest magnitudes.

**exact** is in ``exact.py``, and **topk** is ``torch.topk``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sparkdl_comm.compress import exact
from sparkdl_comm.errors import ConfError, InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

#: Number of rounds of mstopk's search, as in the paper.
ROUNDS = 30

#: dgc: fraction of the elements to sample (the paper has 0.1 to 1 %), and the least number of elements to sample.
SAMPLE_FRACTION = 0.01
MIN_SAMPLE_ELEMENTS = 1024
#: dgc: factor for a threshold that too few elements reach, and the number of thresholds to try before all elements count.
LOWERING_FACTOR = 0.8
MAX_THRESHOLDS = 10


@dataclass(frozen=True)
class Operator:
    """Operator that selects elements of a vector.

    ``is_exact``: True if its selection has the k largest magnitudes; any of equal ones; NaN ranks above infinity.
    ``choose(values, k, generator)``: called with 0 < k < d, returns k distinct indices, ascending. ``upper(values,
    k)``: magnitude at which its search ends; it selects all larger elements. For an exact operator that is the k-th
    largest magnitude.
    """

    name: str
    is_exact: bool
    choose: Callable[[torch.Tensor, int, torch.Generator | None], torch.Tensor]
    upper: Callable[[torch.Tensor, int], float]

    def __call__(self, values: torch.Tensor, k: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the indices of k elements of ``values`` (shape [d]; float32, float16 or bfloat16; any device).

        The result has shape [k], int64, on the device of ``values``. It always has exactly k distinct indices,
        ascending. Equal values, k and state of ``generator`` give the same indices.

        :param generator: CPU generator for random choices (``mstopk``: the run in the band between its thresholds;
            ``dgc``: the sample). None for torch's default.
        :raises InputError: ``values`` has another shape or dtype, or k is not from 0 to d.
        """
        if values.dim() != 1 or values.dtype not in DTYPES:
            raise InputError(
                f"{self.name} selects from vectors of {', '.join(map(str, DTYPES))}, not from {values.dtype} of"
                f" shape {list(values.shape)}. Flatten or convert it"
            )
        count = values.numel()
        if not 0 <= k <= count:
            raise InputError(f"{self.name}: k={k} of {count} elements: k must be from 0 to that number")
        if k == 0 or k == count:
            return torch.arange(k, device=values.device)
        return self.choose(values.detach(), k, generator)


def operator(name: str) -> Operator:
    """Return the operator called ``name``.

    :raises ConfError: there is no such operator.
    """
    if name not in OPERATORS:
        raise ConfError(f"operator {name!r}: there are {', '.join(OPERATORS)}")
    return OPERATORS[name]


class Band(NamedTuple):
    """Result of a search: ``above`` elements, at most k, reach ``upper``. The elements of the band reach ``lower``."""

    upper: float
    lower: float
    above: int


def search_band(magnitudes: torch.Tensor, k: int, rounds: int = ROUNDS) -> Band:
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


def mstopk(
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
        chosen = others[_fill_from_band(magnitudes[others], k - len(first), generator, rounds)]
        return torch.cat([first, chosen]).sort().values
    return _fill_from_band(magnitudes, k, generator, rounds)


def _mstopk_upper(values: torch.Tensor, k: int, rounds: int = ROUNDS) -> float:
    """Return the upper threshold at which :func:`mstopk` ends. It selects all larger elements."""
    magnitudes = values.abs().float()
    finite = magnitudes.isfinite()
    left = k - int(torch.count_nonzero(~finite))
    return search_band(magnitudes[finite], left, rounds).upper if left > 0 else math.inf


def _fill_from_band(magnitudes: torch.Tensor, k: int, generator: torch.Generator | None, rounds: int) -> torch.Tensor:
    band = search_band(magnitudes, k, rounds)
    reach = magnitudes >= band.upper
    missing = k - band.above
    if missing:
        between = ((magnitudes >= band.lower) & ~reach).nonzero().flatten()
        start = int(torch.randint(len(between) - missing + 1, (), generator=generator))
        reach[between[start : start + missing]] = True
    return reach.nonzero().flatten()


def _dgc(values: torch.Tensor, k: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return the indices of k elements with the k largest magnitudes, ascending, for 0 < k < d.

    :param generator: CPU generator that draws the sample; None for torch's default.
    """
    magnitudes = values.abs()
    count = magnitudes.numel()
    sample_elements = min(count, max(MIN_SAMPLE_ELEMENTS, math.ceil(SAMPLE_FRACTION * count)))
    positions = torch.randint(count, (sample_elements,), generator=generator).to(values.device)
    expected = max(1, round(sample_elements * k / count))
    threshold = float(torch.topk(magnitudes[positions], expected).values[-1])
    for _ in range(MAX_THRESHOLDS):
        # Not written with >=, which is false for NaN.
        candidates = (~(magnitudes < threshold)).nonzero().flatten()
        if len(candidates) >= k:
            break
        threshold *= LOWERING_FACTOR
    else:
        candidates = torch.arange(count, device=values.device)
    if len(candidates) > k:
        candidates = candidates[torch.topk(magnitudes[candidates], k, sorted=False).indices]
    return candidates.sort().values


def _topk(values: torch.Tensor, k: int, _generator: torch.Generator | None) -> torch.Tensor:
    return exact.by_topk(values, k)


def _exact(values: torch.Tensor, k: int, _generator: torch.Generator | None) -> torch.Tensor:
    return exact.select(values, k)


def _kth_magnitude(values: torch.Tensor, k: int) -> float:
    return float(torch.topk(values.detach().abs(), k).values[-1])


#: Operators by name. Of equal magnitudes, ``exact`` selects the first; with ``topk`` and ``dgc``, torch decides.
OPERATORS: dict[str, Operator] = {
    made.name: made
    for made in (
        Operator("mstopk", False, mstopk, _mstopk_upper),
        Operator("exact", True, _exact, _kth_magnitude),
        Operator("topk", True, _topk, _kth_magnitude),
        Operator("dgc", True, _dgc, _kth_magnitude),
    )
}
