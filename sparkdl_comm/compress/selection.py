"""Selection of the k elements of a gradient with the largest magnitudes, by operators that have names.

All operators rank infinite elements and NaN above finite elements. A gradient that is not finite, of a step that fp16
must skip, is therefore still not finite after selection, unless k is 0.
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
        Operator("mstopk", False, mstopk.select, mstopk.upper),
        Operator("exact", True, _exact, _kth_magnitude),
        Operator("topk", True, _topk, _kth_magnitude),
        Operator("dgc", True, dgc.select, _kth_magnitude),
    )
}
