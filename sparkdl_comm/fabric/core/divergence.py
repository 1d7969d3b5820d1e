"""How far the replica can be from the server, by the norms of updates alone.

With momentum m a step is w' = w + u + m (w - w_before), u being an update or an aggregator's sum of several. After k steps,
its own included, u has moved the parameters by c(k) u with c(k) = 1 + m + ... + m^(k-1). So server and replica, which began
with the same parameters, differ by the sum over all updates of (c(k_server) - c(k_replica)) u, where k is 0 on the side
that has not applied it yet. Its norm is at most the sum of abs(c(k_server) - c(k_replica)) norm(u). That is the bound of
Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 5.3:
squared, and multiplied out, it has a Cauchy-Schwarz term for each pair of updates.

Server and replica may sum updates in different groups, hence take different numbers of steps. The bound counts the difference
that this makes as well; it fades as steps follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Steps after which an update is forgotten once both sides have it: what its part still changes by is this of its norm at
#: most.
_FADED = 1e-12


class Divergence:
    """The updates that server and replica have applied, and in which of their steps."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._norms: NDArray[np.float64] = np.empty(0)
        #: The step of each side that applied an update, from 0; -1: not yet.
        self._applied: NDArray[np.int64] = np.empty((2, 0), dtype=np.int64)
        self._ids: list[int] = []
        self._steps = [0, 0]

    def copy(self) -> Divergence:
        made = Divergence(self._momentum)
        made._norms, made._applied = self._norms, self._applied.copy()
        made._ids, made._steps = list(self._ids), list(self._steps)
        return made

    def serve(self, updates: Sequence[int], norms: Sequence[float]) -> None:
        """The server applies the sum of these updates, in one step. ``norms``: after multiplying by the step size."""
        self._ids += updates
        self._norms = np.append(self._norms, norms)
        new = np.full((2, len(updates)), -1, dtype=np.int64)
        new[0] = self._steps[0]
        self._applied = np.append(self._applied, new, axis=1)
        self._steps[0] += 1

    def replicate(self, updates: Sequence[int]) -> None:
        """The replica applies the sum of these updates, in one step. The server has applied all of them."""
        at = np.isin(self._ids, updates)
        self._applied[1, at] = self._steps[1]
        self._steps[1] += 1

    def bound(self, behind: int = 0) -> float:
        """The most that the L2 norm of the difference of their parameters can be; or could be before the server took the last
        ``behind`` of its steps."""
        if not self._ids:
            return 0.0
        parts = self._parts(behind)
        return float(np.abs(parts[0] - parts[1]) @ self._norms)

    def prune(self) -> None:
        """Forgets updates whose part does not change any more."""
        steps = np.where(self._applied < 0, 0, np.array(self._steps)[:, None] - self._applied)
        self._keep((self._momentum ** steps.min(axis=0)) > _FADED)

    def _parts(self, behind: int) -> NDArray[np.float64]:
        """c of each side and update, [2, updates]."""
        taken = np.array([self._steps[0] - behind, self._steps[1]])[:, None]
        steps = np.where(self._applied < 0, 0, np.maximum(taken - self._applied, 0))
        return (1 - self._momentum**steps) / (1 - self._momentum)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self._ids = [update for update, keep in zip(self._ids, kept, strict=True) if keep]
        self._norms, self._applied = self._norms[kept], self._applied[:, kept]
