"""State of a job at the scheduler: nodes, updates, transfers under way, and where the decisions so far lead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.core.aggregate import Group, Side
from sparkdl_comm.fabric.core.messages import ModelRequested, Node, Push, Role, Roles, StateCopy, Transfer
from sparkdl_comm.fabric.core.network import PendingTransfers, to_pieces
from sparkdl_comm.fabric.core.updates import Divergence, UpdateLedger
from sparkdl_comm.fabric.params import FabricParams


@dataclass
class CatchUpTurn:
    """Updates on their way to the replicas. ``missing``: their transfers that have not ended."""

    updates: tuple[int, ...]
    missing: set[int]


@dataclass(frozen=True)
class PendingTurn:
    """Pushes of one turn, one for each server that has not applied it. ``end``: planned arrival of the last one,
    seconds."""

    turn: int
    pushes: list[Push]
    end: float

    @property
    def updates(self) -> tuple[int, ...]:
        """Ids of the updates in the pushes."""
        return self.pushes[0].updates


class SchedulerState:
    """State of a job, once all decisions so far are carried out.

    ``serving_role``: role of the nodes that act as servers, ``"replica"`` after the replicas have taken over.
    """

    def __init__(self, roles: Roles, params: FabricParams) -> None:
        self.roles, self.params = roles, params
        self.lost_nodes: set[Node] = set()
        self.serving_role: Role = "server"
        self.updates = UpdateLedger(len(roles.workers), has_replicas=bool(roles.replicas))
        self.transfers = PendingTransfers()
        self.requests: list[ModelRequested] = []
        #: The servers' version, in updates, once all decisions are applied.
        self.version = params.version
        #: Next turn of servers and replicas, and the time until which decided transfers keep them busy, seconds.
        self.turns: dict[Role, int] = {"server": 0, "replica": 0}
        self.busy_until: dict[Role, float] = {"server": -math.inf, "replica": -math.inf}
        self.divergence = Divergence(params.momentum)
        #: Punted updates under way to the replicas, by turn. ``divergence`` does not count them as replicated yet.
        self.catch_up_turns: dict[int, CatchUpTurn] = {}
        self.ids = count()
        #: Bytes of an update, or of the model, at each server, from the last update or request.
        self.sizes: tuple[int, ...] = (0,) * len(roles.servers)
        #: A lost node has left servers and replicas with different updates.
        self.has_diverged = False
        self._rates: list[tuple[float, float] | None] = [None] * roles.hosts

    @property
    def servers(self) -> tuple[int, ...]:
        """Host of each server. After the replicas have taken over: host of each replica."""
        return self.roles.servers if self.serving_role == "server" else self.roles.replicas

    @property
    def replicas(self) -> tuple[int, ...]:
        """Host of each replica; none if they are lost or have taken over."""
        return self.roles.replicas if self.updates.has_replicas else ()

    @property
    def catch_up_states(self) -> list[Divergence]:
        """Divergence after each turn with which the replicas catch up."""
        states: list[Divergence] = []
        for each in self.catch_up_turns.values():
            states.append((states[-1] if states else self.divergence).copy())
            states[-1].replicate(each.updates)
        return states

    @property
    def is_copying(self) -> bool:
        """True while copies of the servers are on their way to the replicas."""
        return any(isinstance(transfer, StateCopy) for transfer in self.transfers.list_all())

    @property
    def can_serve(self) -> bool:
        """True if the servers may get more updates. Under a divergence bound they wait until copies have arrived."""
        return self.params.divergence_bound == math.inf or not self.is_copying

    def record_bandwidth(self, host: int, up: float, down: float) -> None:
        """Record the bandwidth of a host's links, bytes per second.

        :raises InputError: unknown host, or rates that are negative or not finite.
        """
        if not 0 <= host < len(self._rates):
            raise InputError(f"bandwidth of unknown host {host}. Hosts are 0 to {len(self._rates) - 1}.")
        if not (0 <= up < math.inf and 0 <= down < math.inf):
            raise InputError(f"bandwidth of host {host}, {up} and {down} bytes/s: must be finite and at least 0")
        if self._rates[host] != (up, down):
            self._rates[host] = (up, down)
            self.transfers.mark_stale()

    @property
    def answerable_workers(self) -> list[int]:
        """Workers that have asked for the model and may have it."""
        pushed, slowest = self.updates.pushed, self.updates.count_slowest()
        return [r.worker for r in self.requests if self.params.can_begin(pushed[r.worker], slowest)]

    def list_server_turns(self) -> list[PendingTurn]:
        """Return the turns under way to the servers, or to the replicas once these have taken over, in order."""
        turns: dict[int, list[Push]] = {}
        for transfer in self.transfers.list_all():
            if isinstance(transfer, Push) and transfer.turn is not None and transfer.target.role == self.serving_role:
                turns.setdefault(transfer.turn, []).append(transfer)
        return [
            PendingTurn(turn, pushes, max(self.transfers.get_planned_end(push.id) for push in pushes))
            for turn, pushes in sorted(turns.items())
        ]

    def rates(self) -> list[tuple[float, float]]:
        """Return each host's rates out and in, bytes per second.

        :raises InputError: the bandwidth of a host was never reported.
        """
        known = [pair for pair in self._rates if pair is not None]
        if len(known) < len(self._rates):
            raise InputError(f"the bandwidth of host {self._rates.index(None)} has not been reported yet")
        return known

    @property
    def gathering_seconds(self) -> float:
        """Seconds in which the servers' first aggregator can receive all pending updates but one. That one may be on
        its host."""
        first = next(iter(self.list_aggregators(self.serving_role)), None)
        if first is None:
            return 0.0
        _, down = self.rates()[self.roles.host(Node("aggregator", first))]
        return (len(self.updates.pending) - 1) * sum(self.sizes) / down if down else 0.0

    def list_aggregators(self, role: Role) -> list[int]:
        """Return the indices of the remaining aggregators for this role, fastest first."""
        mine = len(self.roles.aggregators)
        theirs = mine + len(self.roles.replica_aggregators)
        numbers = range(mine, theirs) if role == "replica" else range(mine)
        if self.serving_role == "replica":
            numbers = range(theirs)
        rates = self.rates()

        def seconds_per_byte(number: int) -> float:
            up, down = rates[self.roles.host(Node("aggregator", number))]
            return 1 / up + 1 / down if up and down else math.inf

        return sorted(
            (number for number in numbers if Node("aggregator", number) not in self.lost_nodes), key=seconds_per_byte
        )

    def get_side(self, role: Role) -> Side:
        """Return the hosts of the servers or replicas, with aggregators in the order of :meth:`list_aggregators`."""
        aggregators = [self.roles.host(Node("aggregator", number)) for number in self.list_aggregators(role)]
        servers = self.servers if role == self.serving_role else self.replicas
        return Side(servers, aggregators, self.busy_until[role])

    def add_request(self, request: ModelRequested) -> None:
        """Add a worker's request for the model. A repeated request counts once."""
        self.sizes = request.sizes
        if all(other.worker != request.worker for other in self.requests):
            self.requests.append(request)

    def repeat_requests(self, workers: Iterable[int]) -> None:
        """Repeat the requests of these workers, because the answers did not reach them."""
        for worker in workers:
            if Node("worker", worker) not in self.lost_nodes:
                self.add_request(ModelRequested(worker, self.sizes))

    def add_transfer(self, transfer: Transfer) -> None:
        """Record that a transfer was decided on."""
        self.transfers.add(transfer, self.roles.host(transfer.source), self.roles.host(transfer.target))

    def deliver(self, group: Group, numbers: Sequence[int], role: Role, awaited: Sequence[int] = ()) -> list[Push]:
        """Record and return the transfers of one group to the nodes of ``role``.

        :param numbers: update ids of the group's members.
        :param awaited: transfers that must end before the group is sent to the nodes of ``role``.
        """
        entries = [self.updates.by_id[number] for number in numbers]
        source = Node("worker", entries[0].update.worker)
        gathering: list[Push] = []
        if group.aggregator is not None:
            source = Node("aggregator", self.list_aggregators(role)[group.aggregator])
            gathering = [
                Push(
                    id=next(self.ids),
                    source=Node("worker", entry.update.worker),
                    target=source,
                    bytes=entry.update.bytes,
                    schedule=to_pieces(schedule),
                    updates=(entry.update.id,),
                    scales=(entry.scale,),
                    shard=None,
                    turn=None,
                )
                for entry, schedule in zip(entries, group.arrivals, strict=True)
            ]
        final = [
            Push(
                id=next(self.ids),
                source=source,
                target=Node(role, shard),
                bytes=max(entry.update.sizes[shard] for entry in entries),
                after=(*(push.id for push in gathering), *awaited),
                schedule=to_pieces(schedule),
                updates=tuple(numbers),
                scales=tuple(entry.scale for entry in entries),
                shard=shard,
                turn=self.turns[role],
            )
            for shard, schedule in enumerate(group.deliveries)
        ]
        ids = [push.id for push in final]
        if role == self.serving_role:
            self.updates.serve(numbers, ids)
            self.version += len(numbers)
            if self.replicas:
                self.divergence.serve(numbers, [entry.norm for entry in entries])
        else:
            self.updates.replicate(numbers, ids)
        self.turns[role] += 1
        self.busy_until[role] = group.done
        for push in (pushes := [*gathering, *final]):
            self.add_transfer(push)
        return pushes
