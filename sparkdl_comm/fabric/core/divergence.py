"""Upper bound on the distance between replica and server, from the norms of updates alone.

With momentum m a step is w' = w + u + m (w - w_before). Here u is an update or an aggregator's sum. After k steps,
its own included, u has moved the parameters by c(k) u with c(k) = 1 + m + ... + m^(k-1). Set k to 0 on a side that
has not applied u yet.

Server and replica began with the same parameters. So they differ by the sum over all updates of (c(k_server) -
c(k_replica)) u. The norm of this sum is at most the sum of abs(c(k_server) - c(k_replica)) norm(u). That is the bound
of Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section
5.3. Squared and multiplied out, it has a Cauchy-Schwarz term for each pair of updates.

Server and replica may sum updates in different groups and so take different numbers of steps. The bound includes this
difference, which fades as steps follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: An update that both sides have is forgotten once its remaining effect is at most this share of its norm.
_FADED_SHARE = 1e-12


class Divergence:
    """Record of the optimizer step in which server and replica applied each update."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._norms: NDArray[np.float64] = np.empty(0)
        #: Step in which each side (server, replica) applied each update, from 0; -1 if it has not.
        self._applied: NDArray[np.int64] = np.empty((2, 0), dtype=np.int64)
        self._ids: list[int] = []
        self._steps = [0, 0]

    def copy(self) -> Divergence:
        made = Divergence(self._momentum)
        made._norms, made._applied = self._norms, self._applied.copy()
        made._ids, made._steps = list(self._ids), list(self._steps)
        return made

    def serve(self, updates: Sequence[int], norms: Sequence[float]) -> None:
        """Record that the server applies the sum of these updates in one step. ``norms``: after multiplying by the
        step size."""
        self._ids += updates
        self._norms = np.append(self._norms, norms)
        new = np.full((2, len(updates)), -1, dtype=np.int64)
        new[0] = self._steps[0]
        self._applied = np.append(self._applied, new, axis=1)
        self._steps[0] += 1

    def replicate(self, updates: Sequence[int]) -> None:
        """Record that the replica applies the sum of these updates in one step. The server must have applied all of
        them."""
        at = np.isin(self._ids, updates)
        self._applied[1, at] = self._steps[1]
        self._steps[1] += 1

    def bound(self, behind: int = 0) -> float:
        """Return an upper bound on the L2 norm of the parameters' difference.

        ``behind``: number of the server's last steps to leave out.
        """
        if not self._ids:
            return 0.0
        parts = self._compute_coefficients(behind)
        return float(np.abs(parts[0] - parts[1]) @ self._norms)

    def prune(self) -> None:
        """Forget updates whose effect on the difference has faded."""
        steps = np.where(self._applied < 0, 0, np.array(self._steps)[:, None] - self._applied)
        self._keep((self._momentum ** steps.min(axis=0)) > _FADED_SHARE)

    def _compute_coefficients(self, behind: int) -> NDArray[np.float64]:
        """Return c for each side and update, shape [2, updates]."""
        taken = np.array([self._steps[0] - behind, self._steps[1]])[:, None]
        steps = np.where(self._applied < 0, 0, np.maximum(taken - self._applied, 0))
        return (1 - self._momentum**steps) / (1 - self._momentum)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self._ids = [update for update, keep in zip(self._ids, kept, strict=True) if keep]
        self._norms, self._applied = self._norms[kept], self._applied[:, kept]
