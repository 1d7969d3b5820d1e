"""Which daemon is which node of the scheduler's core, and on which host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from sparkdl_comm.errors import ConfError, InputError
from sparkdl_comm.fabric.core.roles import Node, Role, Roles
from sparkdl_comm.fabric.protocol import RailAddresses, Register

#: Role of a rank 0 that only schedules.
SCHEDULER = "scheduler"
_ROLES: tuple[Role, ...] = ("worker", "server", "replica", "aggregator")


@dataclass(frozen=True)
class Directory:
    """``nodes``: of each daemon's registration. ``hosts``: number of each host. ``spared``: how many aggregators, the last
    ones, work for replicas. ``elements``: of each server's part of the model; none if there are no servers."""

    nodes: dict[Node, Register]
    hosts: dict[str, int]
    spared: int
    elements: tuple[int, ...]

    @classmethod
    def of(cls, registered: Sequence[Register], replica_aggregators: int) -> Directory:
        """All daemons have registered.

        :param replica_aggregators: how many aggregators work for the replicas, if there are replicas.
        :raises ConfError: servers' parts do not make a model, or too few aggregators for those that are to work for replicas.
        :raises InputError: daemons do not agree on what must be the same.
        """
        for other in registered:
            if other.limits != registered[0].limits:
                raise InputError(
                    f"rank {other.rank} registered with {other.limits}, rank {registered[0].rank} with"
                    f" {registered[0].limits}: all ranks must give the same"
                )
        hosts: dict[str, int] = {}
        for register in registered:
            if register.role != SCHEDULER:  # no data go to it or come from it
                hosts.setdefault(register.host, len(hosts))
        nodes: dict[Node, Register] = {}
        for role in _ROLES:
            found = sorted((r for r in registered if r.role == role), key=lambda r: (r.shard, r.rank))
            nodes |= {Node(role, index): register for index, register in enumerate(found)}
            if role in ("server", "replica") and [each.shard for each in found] != list(range(len(found))):
                raise ConfError(
                    f"the parts of the model are {[each.shard for each in found]}: each {role} needs another"
                )
        for node, replica in nodes.items():
            server = nodes.get(Node("server", node.index))
            if node.role == "replica" and (
                server is None or (server.elements, server.crc) != (replica.elements, replica.crc)
            ):
                raise InputError(f"rank {replica.rank}, a replica, begins with another model than its server")
        aggregators = _count(nodes, "aggregator")
        spared = replica_aggregators if _count(nodes, "replica") else 0
        if spared > aggregators:
            raise ConfError(f"{spared} aggregators are to work for replicas, and there are {aggregators}: none is free")
        elements = tuple(nodes[Node("server", shard)].elements for shard in range(_count(nodes, "server")))
        return cls(nodes, hosts, spared, elements)

    @cached_property
    def roles(self) -> Roles:
        """:raises ConfError: no worker, or no server."""
        here: dict[str, tuple[int, ...]] = {
            role: tuple(self.host(Node(role, index)) for index in range(_count(self.nodes, role))) for role in _ROLES
        }
        kept = len(here["aggregator"]) - self.spared
        return Roles(
            workers=here["worker"],
            servers=here["server"],
            aggregators=here["aggregator"][:kept],
            replicas=here["replica"],
            replica_aggregators=here["aggregator"][kept:],
        )

    def for_reduction(self, root: Node, elements: int) -> Directory:
        """The same workers and aggregators, of which the worker ``root`` is the server of a model of so many elements."""
        nodes = {node: register for node, register in self.nodes.items() if node.role in ("worker", "aggregator")}
        return Directory({**nodes, Node("server", 0): nodes[root]}, self.hosts, 0, (elements,))

    def host(self, node: Node) -> int:
        return self.hosts[self.nodes[node].host]

    def rank(self, node: Node) -> int:
        return self.nodes[node].rank

    def named(self, node: Node) -> str:
        """For people."""
        return f"the {node.role} of rank {self.rank(node)}"

    def rails(self, node: Node) -> RailAddresses:
        """Where the node takes data."""
        return self.nodes[node].rails

    def part(self, shard: int | None) -> tuple[int, int]:
        """First element, and number of elements, of a server's part; of all parts if ``shard`` is None."""
        if shard is None:
            return 0, sum(self.elements)
        return [0, *accumulate(self.elements)][shard], self.elements[shard]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each server's part."""
        return tuple(4 * count for count in self.elements)


def _count(nodes: dict[Node, Register], role: Role) -> int:
    return sum(1 for node in nodes if node.role == role)
