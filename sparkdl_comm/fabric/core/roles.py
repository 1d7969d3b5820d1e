"""Who is where: the nodes of a job, each on a host, whose links are what the scheduler shares out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError

Role = Literal["worker", "server", "aggregator", "replica"]


@dataclass(frozen=True, slots=True)
class Node:
    """One process of a job: its role, and its number among those of that role."""

    role: Role
    index: int


@dataclass(frozen=True)
class Roles:
    """The host of every node, as numbers from 0. Nodes of one host reach each other without a link.

    ``servers``: more than one if the model is sharded; ``replicas``: the replica of each server, or none.
    ``aggregators``: those of the servers; in the other direction they distribute models. ``replica_aggregators``: those of the
    replicas, whose numbers follow on.

    :raises ConfError: no worker or no server; replicas that are neither none nor one for each server.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    aggregators: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    replica_aggregators: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise ConfError(
                f"fabric needs a worker and a server at least, not {len(self.workers)} and {len(self.servers)}"
            )
        if len(self.replicas) not in (0, len(self.servers)):
            raise ConfError(f"{len(self.replicas)} replicas of {len(self.servers)} servers: one for each, or none")

    @property
    def hosts(self) -> int:
        """How many hosts there are, if the highest number is the last."""
        return 1 + max(*self.workers, *self.servers, *self.aggregators, *self.replicas, *self.replica_aggregators)

    def host(self, node: Node) -> int:
        """The host of ``node``."""
        return {
            "worker": self.workers,
            "server": self.servers,
            "aggregator": self.aggregators + self.replica_aggregators,
            "replica": self.replicas,
        }[node.role][node.index]
