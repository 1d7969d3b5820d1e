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
SAMPLED = 0.01
LEAST_SAMPLED = 1024
#: Factor for a threshold that too few elements reach, and the number of thresholds to try before all elements count.
LOWERED = 0.8
TIMES = 10


def select(values: torch.Tensor, k: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return the indices of k elements with the k largest magnitudes, ascending, for 0 < k < d.

    :param generator: CPU generator that draws the sample; None for torch's default.
    """
    magnitudes = values.abs()
    count = magnitudes.numel()
    sampled = min(count, max(LEAST_SAMPLED, math.ceil(SAMPLED * count)))
    drawn = torch.randint(count, (sampled,), generator=generator).to(values.device)
    expected = max(1, round(sampled * k / count))
    threshold = float(torch.topk(magnitudes[drawn], expected).values[-1])
    for _ in range(TIMES):
        # Not written with >=, which is false for NaN.
        reaching = (~(magnitudes < threshold)).nonzero().flatten()
        if len(reaching) >= k:
            break
        threshold *= LOWERED
    else:
        reaching = torch.arange(count, device=values.device)
    if len(reaching) > k:
        reaching = reaching[torch.topk(magnitudes[reaching], k, sorted=False).indices]
    return reaching.sort().values
