"""Settings of a job, equal on all ranks.

The step size adapts to delays. Suvrit Sra, Adams Wei Yu, Mu Li and Alexander Smola, "AdaDelay: Delay Adaptive
Distributed Stochastic Optimization", AISTATS 2016. Used as in MLfabric, section 3.1. With delays uniform in
[m - e, m + e], the error after t updates is O(e sqrt(t + m - e) / t).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl_comm.conf import forms
from sparkdl_comm.conf.groups import FabricConf
from sparkdl_comm.errors import ConfError, InputError


def step_size(scale: float, version: int, delay: int) -> float:
    """Return ``scale / sqrt(version + delay)``.

    :param scale: C of the paper, above 0.
    :param version: updates in the model, this one included; at least 1.
    :param delay: how many of these are missing from the version the update was computed from. Negative values count
        as 0.
    """
    return scale / math.sqrt(version + max(delay, 0))


@dataclass(frozen=True)
class FabricParams:
    """Training parameters, equal on all ranks.

    :param sync: ``async:TAU`` for the delay bound TAU: an update may be applied only while the model has had at most
        TAU updates, itself included, since the version that the update was computed from. ``ssp:K``: no worker begins
        an iteration more than K ahead of the slowest worker's. ``bsp``: an iteration begins when all updates of the
        one before are applied.
    :param divergence_bound: upper bound of the L2 norm of the difference between the models of server and replica.
        Unused without replicas.
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
        try:
            forms.sync(self.sync)
        except ValueError as exc:
            raise ConfError(f"sync={self.sync!r}: must be {exc}") from None
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
        return int(self.sync[len("async:") :]) if self.sync.startswith("async:") else None

    def deadline(self, base: int, version: int) -> int | None:
        """Return the last position, counted from 1, at which an update may be applied to a model of ``version``. None
        means any.

        ``base``: version from which the update was computed.
        """
        return None if self.delay_bound is None else base + self.delay_bound - version

    def can_begin(self, pushed: int, slowest: int) -> bool:
        """Return whether a worker may get the model for its next iteration.

        :param pushed: updates that the worker has pushed.
        :param slowest: updates of the slowest worker that have been applied or dropped.
        """
        if self.delay_bound is not None:
            return True
        ahead = 0 if self.sync == "bsp" else int(self.sync[len("ssp:") :])
        return slowest >= pushed - ahead

    def scale(self, version: int, base: int) -> float:
        """Return the factor of an update computed from version ``base``, after which the model has ``version``
        updates."""
        return 1.0 if self.step_scale is None else step_size(self.step_scale, version, version - base)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters by name, for JSON."""
        return asdict(self)
