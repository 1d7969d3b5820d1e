"""Settings of the running scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.conf import CommConf
from sparkdl_comm.units import parse_rate


@dataclass(frozen=True)
class SchedulerOptions:
    """Settings of the running scheduler.

    - ``interval``: seconds between batches.
    - ``link``: bytes per second assumed for a host's links, in each direction, where the system does not know.
    - ``replica_aggregators``: how many aggregators work for replicas.
    - ``timeout``: seconds that a daemon may take for a message.
    """

    interval: float
    link: float
    replica_aggregators: int
    timeout: float

    @classmethod
    def of(cls, conf: CommConf) -> SchedulerOptions:
        """Return the options from the configuration."""
        link = parse_rate(conf.fabric_link_rate) / 8
        return cls(conf.fabric_batch_interval, link, conf.fabric_replica_aggregators, conf.timeout)
