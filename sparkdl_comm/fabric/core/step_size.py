"""The delay-adaptive step size of asynchronous SGD.

Suvrit Sra, Adams Wei Yu, Mu Li and Alexander Smola, "AdaDelay: Delay Adaptive Distributed Stochastic Optimization", AISTATS
2016, as Raajay Viswanathan and Aditya Akella use it, "Network-accelerated Distributed Machine Learning Using MLfabric",
section 3.1: with delays that are uniform in [m - e, m + e], the error after t updates is O(e sqrt(t + m - e) / t).
"""

from __future__ import annotations

import math


def step_size(scale: float, version: int, delay: int) -> float:
    """``scale / sqrt(version + delay)``.

    :param scale: C of the paper, above 0.
    :param version: how many updates the model will have had with this one, at least 1.
    :param delay: how many of them are not in the version that the update was computed from; below 0 counts as 0.
    """
    return scale / math.sqrt(version + max(delay, 0))
