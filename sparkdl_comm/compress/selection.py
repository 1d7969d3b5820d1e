"""Which k elements of a gradient are sent: those of the largest magnitude, by operators that are known by name.

All operators hold what is not finite for larger than what is: infinite elements, and NaN. So a gradient that is not finite, of
a step that fp16 must skip, is still not finite after selection, as long as k is not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sparkdl_comm.compress import dgc, exact, mstopk
from sparkdl_comm.errors import ConfError, InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Operator:
    """Selects elements of a vector.

    ``exact``: whether what it selects has the k largest magnitudes (of equal ones any; NaN is larger than infinite ones).
    ``choose(values, k, generator)`` is called with 0 < k < d and returns k distinct indices, ascending. ``upper(values, k)``
    is the magnitude that its search ends at: whatever is larger is selected. That of an exact operator is the k-th largest.
    """

    name: str
    exact: bool
    choose: Callable[[torch.Tensor, int, torch.Generator | None], torch.Tensor]
    upper: Callable[[torch.Tensor, int], float]

    def __call__(self, values: torch.Tensor, k: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Selects k elements of ``values`` (shape [d]; float32, float16 or bfloat16; any device).

        Returns their indices: shape [k], int64, ascending, distinct, on the device of ``values``; always exactly k of them.
        With equal values, k and state of ``generator`` they are the same on every call.

        :param generator: on the CPU; draws what is random (``mstopk``: which part of the band between its thresholds; ``dgc``:
            the sample). None: torch's own.
        :raises InputError: ``values`` has another shape or dtype, or k is negative, or larger than d: k indices that are
            distinct cannot be found then.
        """
        if values.dim() != 1 or values.dtype not in DTYPES:
            raise InputError(
                f"{self.name}: selects from vectors of {', '.join(map(str, DTYPES))}, not from {values.dtype} of"
                f" shape {list(values.shape)}: flatten or convert it"
            )
        count = values.numel()
        if not 0 <= k <= count:
            raise InputError(f"{self.name}: k={k} of {count} elements: k must be from 0 to their number")
        if k == 0 or k == count:
            return torch.arange(k, device=values.device)
        return self.choose(values.detach(), k, generator)


def operator(name: str) -> Operator:
    """The operator of that name.

    :raises ConfError: there is none.
    """
    if name not in OPERATORS:
        raise ConfError(f"operator {name!r}: there are {', '.join(OPERATORS)}")
    return OPERATORS[name]


def _topk(values: torch.Tensor, k: int, _generator: torch.Generator | None) -> torch.Tensor:
    return exact.by_topk(values, k)


def _exact(values: torch.Tensor, k: int, _generator: torch.Generator | None) -> torch.Tensor:
    return exact.select(values, k)


def _kth_magnitude(values: torch.Tensor, k: int) -> float:
    return float(torch.topk(values.detach().abs(), k).values[-1])


#: By name. Of equal magnitudes ``exact`` gives the first; which ones ``topk`` and ``dgc`` give is torch's matter.
OPERATORS: dict[str, Operator] = {
    made.name: made
    for made in (
        Operator("mstopk", False, mstopk.select, mstopk.upper),
        Operator("exact", True, _exact, _kth_magnitude),
        Operator("topk", True, _topk, _kth_magnitude),
        Operator("dgc", True, dgc.select, _kth_magnitude),
    )
}
