"""Mapping of daemons to the nodes and hosts of the core scheduler. No input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from sparkdl_comm.errors import ConfError, InputError
from sparkdl_comm.fabric.core.nodes import Node, Role, Roles
from sparkdl_comm.fabric.protocol import RailAddresses, Register

#: Role of rank 0 if it does nothing but schedule.
SCHEDULER = "scheduler"
_ROLES: tuple[Role, ...] = ("worker", "server", "replica", "aggregator")


@dataclass(frozen=True)
class Directory:
    """Registered nodes of a job, with their hosts.

    - ``nodes``: the registration of each node.
    - ``hosts``: the number of each host.
    - ``num_replica_aggregators``: how many aggregators, the last ones, work for replicas.
    - ``elements``: elements of each server's shard of the model; empty without servers.
    """

    nodes: dict[Node, Register]
    hosts: dict[str, int]
    num_replica_aggregators: int
    elements: tuple[int, ...]

    @classmethod
    def of(cls, registrations: Sequence[Register], replica_aggregators: int) -> Directory:
        """Build the directory from the registrations of all daemons.

        :param replica_aggregators: how many aggregators work for the replicas, if there are replicas.
        :raises ConfError: the shards do not form one model, or there are fewer aggregators than
            ``replica_aggregators``.
        :raises InputError: the daemons registered with different parameters, or a replica with another model than its
            server.
        """
        for other in registrations:
            if other.limits != registrations[0].limits:
                raise InputError(
                    f"rank {other.rank} registered with {other.limits}, rank {registrations[0].rank} with"
                    f" {registrations[0].limits}: all ranks must give the same values"
                )
        hosts: dict[str, int] = {}
        for register in registrations:
            if register.role != SCHEDULER:  # it sends and receives no data
                hosts.setdefault(register.host, len(hosts))
        nodes: dict[Node, Register] = {}
        for role in _ROLES:
            of_role = sorted((r for r in registrations if r.role == role), key=lambda r: (r.shard, r.rank))
            nodes |= {Node(role, index): register for index, register in enumerate(of_role)}
            if role in ("server", "replica") and [each.shard for each in of_role] != list(range(len(of_role))):
                raise ConfError(
                    f"shards {[each.shard for each in of_role]}: each {role} must register a different shard,"
                    " counted from 0"
                )
        for node, replica in nodes.items():
            server = nodes.get(Node("server", node.index))
            if node.role == "replica" and (
                server is None or (server.elements, server.crc) != (replica.elements, replica.crc)
            ):
                raise InputError(f"rank {replica.rank}, a replica, begins with a different model than its server")
        aggregators = _count(nodes, "aggregator")
        num_replica_aggregators = replica_aggregators if _count(nodes, "replica") else 0
        if num_replica_aggregators > aggregators:
            raise ConfError(
                f"{num_replica_aggregators} aggregators requested for replicas, but there are only {aggregators}."
                " Start more, or request fewer"
            )
        elements = tuple(nodes[Node("server", shard)].elements for shard in range(_count(nodes, "server")))
        return cls(nodes, hosts, num_replica_aggregators, elements)

    @cached_property
    def roles(self) -> Roles:
        """Hosts of all nodes, by role.

        :raises ConfError: there is no worker, or no server.
        """
        hosts_by_role: dict[str, tuple[int, ...]] = {
            role: tuple(self.host(Node(role, index)) for index in range(_count(self.nodes, role))) for role in _ROLES
        }
        num_server_aggregators = len(hosts_by_role["aggregator"]) - self.num_replica_aggregators
        return Roles(
            workers=hosts_by_role["worker"],
            servers=hosts_by_role["server"],
            aggregators=hosts_by_role["aggregator"][:num_server_aggregators],
            replicas=hosts_by_role["replica"],
            replica_aggregators=hosts_by_role["aggregator"][num_server_aggregators:],
        )

    def for_reduction(self, root: Node, elements: int) -> Directory:
        """Return the directory of an all-reduce: the same workers and aggregators, with worker ``root`` as the only
        server.

        :param elements: length of the vector.
        """
        nodes = {node: register for node, register in self.nodes.items() if node.role in ("worker", "aggregator")}
        return Directory({**nodes, Node("server", 0): nodes[root]}, self.hosts, 0, (elements,))

    def host(self, node: Node) -> int:
        """Return the number of the node's host."""
        return self.hosts[self.nodes[node].host]

    def rank(self, node: Node) -> int:
        """Return the rank of the node."""
        return self.nodes[node].rank

    def describe(self, node: Node) -> str:
        """Return the node's name for messages to people."""
        return f"the {node.role} of rank {self.rank(node)}"

    def rails(self, node: Node) -> RailAddresses:
        """Return the addresses at which the node receives data."""
        return self.nodes[node].rails

    def shard_range(self, shard: int | None) -> tuple[int, int]:
        """Return the first element and the number of elements of a shard; of the whole model if ``shard`` is None."""
        if shard is None:
            return 0, sum(self.elements)
        return [0, *accumulate(self.elements)][shard], self.elements[shard]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each server's shard."""
        return tuple(4 * count for count in self.elements)


def _count(nodes: dict[Node, Register], role: Role) -> int:
    return sum(1 for node in nodes if node.role == role)
