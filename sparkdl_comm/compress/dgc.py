"""Double sampling (Deep Gradient Compression, Lin et al. 2018, section 5): a sample gives the threshold.

A sample of d' elements is drawn at random. Its k d'/d largest elements give a threshold for all d elements. If more
than k elements reach the threshold, the k largest of them are selected. If fewer do, the threshold is lowered until k
elements reach it. The paper accepts a smaller count. Here the count is always k, so the selection has the k largest
magnitudes.
"""

from __future__ import annotations

import math

import torch

#: Fraction of the elements to sample (the paper has 0.1 to 1 %), and the least number of elements to sample.
SAMPLE_FRACTION = 0.01
MIN_SAMPLE_ELEMENTS = 1024
#: Factor for a threshold that too few elements reach, and the number of thresholds to try before all elements count.
LOWERING_FACTOR = 0.8
MAX_THRESHOLDS = 10


def select(values: torch.Tensor, k: int, generator: torch.Generator | None = None) -> torch.Tensor:
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
