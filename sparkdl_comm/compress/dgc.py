"""Double sampling (Deep Gradient Compression, Lin et al. 2018, section 5): a sample tells the threshold.

Of d' elements drawn at random, the k d'/d largest give a threshold for all d. If more than k elements reach it, the k largest
of them are selected. If fewer do, it is lowered until k do. The paper lets such a count be; here it is always k, and so what
is selected has the k largest magnitudes.
"""

from __future__ import annotations

import math

import torch

#: Of the elements, as the paper has it (0.1 to 1 %); and the fewest that are drawn.
SAMPLED = 0.01
LEAST_SAMPLED = 1024
#: A threshold that too few reach is multiplied by this, and after that many times it is 0.
LOWERED = 0.8
TIMES = 10


def select(values: torch.Tensor, k: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Indices of k elements with the k largest magnitudes, ascending, for 0 < k < d.

    :param generator: on the CPU; draws the sample; None: torch's own.
    """
    magnitudes = values.abs()
    count = magnitudes.numel()
    sampled = min(count, max(LEAST_SAMPLED, math.ceil(SAMPLED * count)))
    drawn = torch.randint(count, (sampled,), generator=generator).to(values.device)
    expected = max(1, round(sampled * k / count))
    threshold = float(torch.topk(magnitudes[drawn], expected).values[-1])
    for _ in range(TIMES):
        # Not >=, which NaN never is.
        reaching = (~(magnitudes < threshold)).nonzero().flatten()
        if len(reaching) >= k:
            break
        threshold *= LOWERED
    else:
        reaching = torch.arange(count, device=values.device)
    if len(reaching) > k:
        reaching = reaching[torch.topk(magnitudes[reaching], k, sorted=False).indices]
    return reaching.sort().values
