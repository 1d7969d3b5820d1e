"""Nodes of a job and the hosts they run on. The scheduler shares out the hosts' links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError

Role = Literal["worker", "server", "aggregator", "replica"]


@dataclass(frozen=True, slots=True)
class Node:
    """Process of a job: its role, and its index among the nodes of that role."""

    role: Role
    index: int


@dataclass(frozen=True)
class Roles:
    """Host of every node, as numbers from 0. Nodes of one host reach each other without a link.

    - ``servers``: more than one if the model is sharded.
    - ``replicas``: replica of each server, or none.
    - ``aggregators``: aggregators of the servers. They also distribute models.
    - ``replica_aggregators``: aggregators of the replicas. Their indices continue those of ``aggregators``.

    :raises ConfError: no worker, no server, or a number of replicas that is neither 0 nor the number of servers.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    aggregators: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    replica_aggregators: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise ConfError(
                f"fabric needs at least one worker and one server, not {len(self.workers)} and {len(self.servers)}"
            )
        if len(self.replicas) not in (0, len(self.servers)):
            raise ConfError(f"{len(self.replicas)} replicas of {len(self.servers)} servers: one per server, or none")

    @property
    def hosts(self) -> int:
        """Number of hosts: the highest host number plus 1."""
        return 1 + max(*self.workers, *self.servers, *self.aggregators, *self.replicas, *self.replica_aggregators)

    def host(self, node: Node) -> int:
        """Return the host of ``node``."""
        return {
            "worker": self.workers,
            "server": self.servers,
            "aggregator": self.aggregators + self.replica_aggregators,
            "replica": self.replicas,
        }[node.role][node.index]
