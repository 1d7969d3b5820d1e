"""What does not change during a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_comm.errors import ConfError
from sparkdl_comm.fabric.core.synchrony import Synchrony


@dataclass(frozen=True)
class Rules:
    """``step_size(version, delay)``: what an update is multiplied by with which the model has had ``version`` updates, of
    which ``delay`` are not in the version that it was computed from, itself included (see ``step_size.py``).
    ``momentum``: that of the servers, from 0 to below 1. ``divergence``: the most that the L2 norm of the difference between
    the servers' and the replicas' parameters may be; not used without replicas.
    ``lead``: while more than half of a server's link is taken for longer than this, seconds, updates and requests wait: those
    that come meanwhile are grouped with them, and none is decided on long before its transfer can begin.
    ``version``: of the model that the servers begin with, in updates.

    :raises ConfError: a momentum, a divergence or a lead outside of these.
    """

    synchrony: Synchrony
    step_size: Callable[[int, int], float]
    momentum: float = 0.0
    divergence: float = math.inf
    lead: float = 0.1
    version: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfError(f"momentum={self.momentum}: must be from 0 to below 1")
        if not self.divergence > 0:
            raise ConfError(f"divergence={self.divergence}: must be above 0")
        if not self.lead >= 0:
            raise ConfError(f"lead={self.lead}: must be at least 0")

    def deadline(self, base: int, version: int) -> int | None:
        """The last position, counted from 1, at which an update that was computed from version ``base`` may be applied to a
        model of ``version``; None: any."""
        return base + self.synchrony.bound - version if self.synchrony.kind == "async" else None

    def may_begin(self, pushed: int, slowest: int) -> bool:
        """Whether a worker may have the model with which it begins its next iteration, after ``pushed``, if the slowest
        worker's updates of ``slowest`` iterations have been applied."""
        if self.synchrony.kind == "async":
            return True
        return slowest >= pushed - self.synchrony.bound
