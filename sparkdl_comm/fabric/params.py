"""Training parameters that all ranks of a fabric must share, and settings of the running scheduler."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.core.rules import Rules, Synchrony
from sparkdl_comm.fabric.core.step_size import step_size
from sparkdl_comm.units import parse_rate


@dataclass(frozen=True)
class SchedulerOptions:
    """Settings of the running scheduler.

    - ``interval_seconds``: seconds between batches.
    - ``link_rate``: bytes per second assumed for a host's links, in each direction, where the system does not know.
    - ``replica_aggregators``: how many aggregators work for replicas.
    - ``timeout``: seconds that a daemon may take for a message.
    """

    interval_seconds: float
    link_rate: float
    replica_aggregators: int
    timeout: float

    @classmethod
    def of(cls, conf: CommConf) -> SchedulerOptions:
        """Return the options from the configuration."""
        link_rate = parse_rate(conf.fabric.link_rate) / 8
        return cls(conf.fabric.batch_interval, link_rate, conf.fabric.replica_aggregators, conf.timeout)


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
    def of(cls, conf: CommConf) -> FabricParams:
        """Return the parameters from the configuration."""
        scale = conf.fabric.step_scale or None
        return cls(conf.fabric.sync, conf.fabric.divergence, conf.fabric.momentum, scale)

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
