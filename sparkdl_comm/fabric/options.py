"""Settings of the running scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.conf import CommConf
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
        link_rate = parse_rate(conf.fabric_link_rate) / 8
        return cls(conf.fabric_batch_interval, link_rate, conf.fabric_replica_aggregators, conf.timeout)
