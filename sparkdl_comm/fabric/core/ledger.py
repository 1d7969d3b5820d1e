"""State that the scheduler keeps for a job."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.core.batch import BatchState
from sparkdl_comm.fabric.core.decisions import Push, StateCopy, Transfer
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.events import ModelRequested
from sparkdl_comm.fabric.core.nodes import Node, Role, Roles
from sparkdl_comm.fabric.core.pending_transfers import PendingTransfers
from sparkdl_comm.fabric.core.replicate import SideHosts
from sparkdl_comm.fabric.core.rules import Rules
from sparkdl_comm.fabric.core.update_ledger import UpdateLedger


@dataclass
class CatchUpTurn:
    """Updates on their way to the replicas. ``missing``: their transfers that have not ended."""

    updates: tuple[int, ...]
    missing: set[int]


class Ledger:
    """Remaining nodes, the workers' updates, transfers under way, and the state that the decisions so far lead to.

    ``serving_role``: role of the nodes that act as servers, ``"replica"`` after the replicas have taken over.
    """

    def __init__(self, roles: Roles, rules: Rules) -> None:
        self.roles, self.rules = roles, rules
        self.lost_nodes: set[Node] = set()
        self.serving_role: Role = "server"
        self.update_ledger = UpdateLedger(len(roles.workers), has_replicas=bool(roles.replicas))
        self.pending_transfers = PendingTransfers()
        self.requests: list[ModelRequested] = []
        #: The servers' version, in updates, once all decisions are applied.
        self.version = rules.version
        #: Next turn of servers and replicas, and the time until which decided transfers keep them busy, seconds.
        self.turns: dict[Role, int] = {"server": 0, "replica": 0}
        self.busy_until: dict[Role, float] = {"server": -math.inf, "replica": -math.inf}
        self.divergence = Divergence(rules.momentum)
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
        return self.roles.replicas if self.update_ledger.has_replicas else ()

    @property
    def state(self) -> BatchState:
        """State that all decisions so far lead to."""
        busy = self.busy_until
        steps_under_way = len({push.turn for push in self.server_pushes})
        return BatchState(
            self.version,
            self.divergence,
            busy[self.serving_role],
            busy["replica"],
            self.catch_up_states,
            steps_under_way,
        )

    @property
    def server_pushes(self) -> list[Push]:
        """Pushes under way to the servers, or to the replicas once these have taken over."""
        return [
            transfer
            for transfer in self.pending_transfers.list_transfers()
            if isinstance(transfer, Push) and transfer.turn is not None and transfer.target.role == self.serving_role
        ]

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
        return any(isinstance(transfer, StateCopy) for transfer in self.pending_transfers.list_transfers())

    @property
    def can_serve(self) -> bool:
        """True if the servers may get more updates. Under a divergence bound they wait until copies have arrived."""
        return self.rules.divergence == math.inf or not self.is_copying

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
            self.pending_transfers.mark_stale()

    @property
    def answerable_workers(self) -> list[int]:
        """Workers that have asked for the model and may have it."""
        update_ledger, slowest = self.update_ledger, self.update_ledger.count_slowest()
        return [r.worker for r in self.requests if self.rules.can_begin(update_ledger.pushed[r.worker], slowest)]

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
        return (len(self.update_ledger.pending) - 1) * sum(self.sizes) / down if down else 0.0

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

    def list_hosts(self) -> SideHosts:
        """Return the hosts of both sides, with aggregators in the order of :meth:`list_aggregators`."""

        def hosts(role: Role) -> list[int]:
            return [self.roles.host(Node("aggregator", number)) for number in self.list_aggregators(role)]

        return SideHosts(
            self.servers, hosts(self.serving_role), self.replicas, hosts("replica") if self.replicas else []
        )

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
        self.pending_transfers.add(transfer, self.roles.host(transfer.source), self.roles.host(transfer.target))
