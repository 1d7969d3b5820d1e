"""Settings that stay the same during a job: parameters that all ranks must share, and rules of the core scheduler
made of them.

The step size adapts to delays. Suvrit Sra, Adams Wei Yu, Mu Li and Alexander Smola, "AdaDelay: Delay Adaptive
Distributed Stochastic Optimization", AISTATS 2016. Used as in Raajay Viswanathan and Aditya Akella,
"Network-accelerated Distributed Machine Learning Using MLfabric", section 3.1. With delays uniform in [m - e, m + e],
the error after t updates is O(e sqrt(t + m - e) / t).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from sparkdl_comm.conf.groups import FabricConf
from sparkdl_comm.errors import ConfError, InputError

_FORM = re.compile(r"(bsp)|(ssp|async):(\d+)")


def step_size(scale: float, version: int, delay: int) -> float:
    """Return ``scale / sqrt(version + delay)``.

    :param scale: C of the paper, above 0.
    :param version: updates in the model, this one included; at least 1.
    :param delay: how many of these are missing from the version the update was computed from. Negative values count
        as 0.
    """
    return scale / math.sqrt(version + max(delay, 0))


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
      ``delay``: how many of these are missing from the version the update was computed from.
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


@dataclass(frozen=True)
class FabricParams:
    """Training parameters, equal on all ranks.

    :param sync: ``async:TAU`` for the delay bound TAU: an update may be applied only while the model has had at most
        TAU updates, itself included, since the version that the update was computed from. ``ssp:K``: no worker is more
        than K iterations ahead of another. ``bsp``: all workers in lockstep.
    :param divergence_bound: upper bound of the L2 norm of the difference between the models of server and replica.
    :param momentum: momentum of the servers, from 0 to below 1.
    :param step_scale: C of the step size C / sqrt(version + delay) by which each update is multiplied; None applies
        updates unscaled.
    :param version: initial version of the servers' model, in updates; above 0 for a model trained before.
    :raises ConfError: an unknown ``sync``, or TAU below 1.
    :raises InputError: another value is out of range.
    """

    sync: str = "async:30"
    divergence_bound: float = math.inf
    momentum: float = 0.0
    step_scale: float | None = None
    version: int = 0

    def __post_init__(self) -> None:
        Synchrony.parse(self.sync)
        if not self.divergence_bound > 0:
            raise InputError(f"divergence_bound={self.divergence_bound}: must be more than 0")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum={self.momentum}: must be from 0 to below 1")
        if self.step_scale is not None and not 0 < self.step_scale < math.inf:
            raise InputError(f"step_scale={self.step_scale}: must be a number above 0, or None")
        if self.version < 0:
            raise InputError(f"version={self.version}: must be at least 0")

    @classmethod
    def of(cls, conf: FabricConf) -> FabricParams:
        """Return the parameters from the configuration."""
        return cls(conf.sync, conf.divergence, conf.momentum, conf.step_scale or None)

    @property
    def delay_bound(self) -> int | None:
        """Delay bound TAU; None if ``sync`` is not ``async``."""
        synchrony = Synchrony.parse(self.sync)
        return synchrony.bound if synchrony.kind == "async" else None

    def to_rules(self) -> Rules:
        """Return the rules of the core scheduler."""
        scaled = partial(step_size, self.step_scale) if self.step_scale is not None else _unscaled
        return Rules(Synchrony.parse(self.sync), scaled, self.momentum, self.divergence_bound, version=self.version)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _unscaled(version: int, delay: int) -> float:
    return 1.0
