"""Settings that stay the same during a job, with how far workers may drift apart (``bsp``, ``ssp:K``, ``async:TAU``)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError

_FORM = re.compile(r"(bsp)|(ssp|async):(\d+)")


@dataclass(frozen=True)
class Synchrony:
    """Limit on the workers' drift.

    - ``bsp``: an iteration begins when all updates of the one before are applied.
    - ``ssp``: no worker begins an iteration more than ``bound`` ahead of the slowest worker's.
    - ``async``: no worker waits. An update is applied only if the model has advanced by at most ``bound`` updates
      since the version it was computed from, itself included.
    """

    kind: Literal["bsp", "ssp", "async"]
    bound: int = 0

    @classmethod
    def parse(cls, text: str, key: str = "sync") -> Synchrony:
        """Return the setting in ``text``: ``bsp``, ``ssp:K`` (K at least 0) or ``async:TAU`` (TAU at least 1).

        :param key: name of the setting in errors.
        :raises ConfError: ``text`` has none of these forms.
        """
        found = _FORM.fullmatch(text)
        if not found or (found[2] == "async" and int(found[3]) < 1):
            raise ConfError(f"{key}={text!r}: must be bsp, ssp:K with K at least 0, or async:TAU with TAU at least 1")
        if found[1]:
            return cls("bsp")
        return cls("ssp" if found[2] == "ssp" else "async", int(found[3]))


@dataclass(frozen=True)
class Rules:
    """Settings of a job's scheduler.

    - ``step_size(version, delay)``: factor of an update. ``version``: updates in the model, this one included.
      ``delay``: how many of these are missing from the version the update was computed from (see ``step_size.py``).
    - ``momentum``: the servers' momentum, at least 0 and below 1.
    - ``divergence``: largest allowed L2 norm of the difference between the servers' and the replicas' parameters.
      Unused without replicas.
    - ``lead_seconds``: seconds. Updates and requests wait while more than half of a server's link is taken for longer
      than this. Waiting lets later ones join their groups, and avoids decisions long before a transfer can begin.
    - ``version``: version of the servers' first model, in updates.

    :raises ConfError: momentum, divergence or lead_seconds is out of range.
    """

    synchrony: Synchrony
    step_size: Callable[[int, int], float]
    momentum: float = 0.0
    divergence: float = math.inf
    lead_seconds: float = 0.1
    version: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfError(f"momentum={self.momentum}: must be from 0 to below 1")
        if not self.divergence > 0:
            raise ConfError(f"divergence={self.divergence}: must be above 0")
        if not self.lead_seconds >= 0:
            raise ConfError(f"lead_seconds={self.lead_seconds}: must be at least 0")

    def deadline(self, base: int, version: int) -> int | None:
        """Return the last position, counted from 1, at which an update may be applied to a model of ``version``. None
        means any.

        ``base``: version from which the update was computed.
        """
        return base + self.synchrony.bound - version if self.synchrony.kind == "async" else None

    def can_begin(self, pushed: int, slowest: int) -> bool:
        """Return whether a worker may get the model for its next iteration.

        :param pushed: updates that the worker has pushed.
        :param slowest: updates of the slowest worker that have been applied or dropped.
        """
        if self.synchrony.kind == "async":
            return True
        return slowest >= pushed - self.synchrony.bound
