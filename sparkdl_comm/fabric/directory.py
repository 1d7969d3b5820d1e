"""Which daemon is which node of the scheduler's core, and on which host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sparkdl_comm.errors import ConfError, InputError
from sparkdl_comm.fabric.core.roles import Node, Roles
from sparkdl_comm.fabric.protocol import RailAddresses, Register

#: Role of a rank 0 that only schedules.
SCHEDULER = "scheduler"


@dataclass(frozen=True)
class Directory:
    """``nodes``: of each daemon's registration. ``elements``: of each server's part of the model."""

    roles: Roles
    nodes: dict[Node, Register]
    elements: tuple[int, ...]

    @classmethod
    def of(cls, registered: Sequence[Register], replica_aggregators: int) -> Directory:
        """All daemons have registered.

        :param replica_aggregators: how many aggregators work for the replicas, if there are replicas.
        :raises ConfError: no worker or no server; not as many replicas as servers, or as aggregators that are to work for
            them.
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
            hosts.setdefault(register.host, len(hosts))
        by_role = {
            role: sorted((r for r in registered if r.role == role), key=lambda r: (r.shard, r.rank))
            for role in ("worker", "server", "replica", "aggregator")
        }
        servers, replicas = by_role["server"], by_role["replica"]
        for kind in (servers, replicas):
            if [each.shard for each in kind] != list(range(len(kind))):
                raise ConfError(
                    f"the parts of the model are {[each.shard for each in kind]}: each server needs another"
                )
        for server, replica in zip(servers, replicas, strict=False):
            if (server.elements, server.crc) != (replica.elements, replica.crc):
                raise InputError(
                    f"rank {replica.rank}, a replica, begins with another model than its server, rank {server.rank}"
                )
        aggregators = by_role["aggregator"]
        spared = replica_aggregators if replicas else 0
        if spared > len(aggregators):
            raise ConfError(
                f"{spared} aggregators are to work for replicas, and there are {len(aggregators)}: none is free"
            )
        here = {role: tuple(hosts[each.host] for each in found) for role, found in by_role.items()}
        kept = len(aggregators) - spared
        roles = Roles(
            workers=here["worker"],
            servers=here["server"],
            aggregators=here["aggregator"][:kept],
            replicas=here["replica"],
            replica_aggregators=here["aggregator"][kept:],
        )
        nodes: dict[Node, Register] = {}
        for found in (by_role["worker"], servers, replicas, aggregators):
            nodes |= {Node(register.role, index): register for index, register in enumerate(found)}  # type: ignore[arg-type]
        return cls(roles, nodes, tuple(each.elements for each in servers))

    def host(self, node: Node) -> int:
        return self.roles.host(node)

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
