"""The entry point: :class:`Scheduler` gathers events and, when asked, decides on all that is waiting as one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_comm.fabric.core.decisions import Decision
from sparkdl_comm.fabric.core.events import Event
from sparkdl_comm.fabric.core.roles import Roles
from sparkdl_comm.fabric.core.synchrony import Synchrony


@dataclass(frozen=True)
class Rules:
    """What does not change during a job.

    ``step_size(version, delay)``: what an update is multiplied by that is applied to this version (see ``step_size.py``).
    ``momentum``: that of the servers, from 0 to below 1. ``divergence``: the most that the L2 norm of the difference between
    the server's and the replica's parameters may be; not used without replicas.
    """

    synchrony: Synchrony
    step_size: Callable[[int, int], float]
    momentum: float = 0.0
    divergence: float = float("inf")


class Scheduler:
    """Events in, decisions out::

        scheduler = Scheduler(roles, rules)
        scheduler.observe(BandwidthReported(...), now)    # for every host, before the first decide
        scheduler.observe(UpdateReady(...), now)          # at any time; nothing is decided yet
        decisions = scheduler.decide(now)                 # every batch interval, 100 ms in the paper

    Times are seconds and never go back. It is not thread-safe.
    """

    def __init__(self, roles: Roles, rules: Rules) -> None:
        self.roles = roles
        self.rules = rules

    def observe(self, event: Event, now: float) -> list[Decision]:
        """Notes what happened at ``now``. What cannot wait for the next batch is decided at once: what follows from a lost node.

        :raises InputError: about a worker, host or transfer that there is not.
        """
        raise NotImplementedError

    def decide(self, now: float) -> list[Decision]:
        """Decides on everything that is waiting, as one batch."""
        raise NotImplementedError
