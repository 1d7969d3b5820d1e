"""Delay-adaptive step size of asynchronous SGD.

Suvrit Sra, Adams Wei Yu, Mu Li and Alexander Smola, "AdaDelay: Delay Adaptive Distributed Stochastic Optimization",
AISTATS 2016. Used as in Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using
MLfabric", section 3.1. With delays uniform in [m - e, m + e], the error after t updates is O(e sqrt(t + m - e) / t).
"""

from __future__ import annotations

import math


def step_size(scale: float, version: int, delay: int) -> float:
    """Return ``scale / sqrt(version + delay)``.

    :param scale: C of the paper, above 0.
    :param version: updates in the model, this one included; at least 1.
    :param delay: how many of these are missing from the version the update was computed from. Negative values count
        as 0.
    """
    return scale / math.sqrt(version + max(delay, 0))
