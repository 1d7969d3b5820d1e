"""Everything that the scheduler knows of a job."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.core.batch import State
from sparkdl_comm.fabric.core.decisions import Copy, Push, Transfer
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.events import ModelRequested
from sparkdl_comm.fabric.core.flight import Flight
from sparkdl_comm.fabric.core.held import Held
from sparkdl_comm.fabric.core.replicate import Sides
from sparkdl_comm.fabric.core.roles import Node, Role, Roles
from sparkdl_comm.fabric.core.rules import Rules


@dataclass
class CatchingUp:
    """Updates that are on their way to the replicas; ``missing``: the transfers to them that have not ended."""

    updates: tuple[int, ...]
    missing: set[int]


class Ledger:
    """Which nodes are left, what they hold, what is under way, and to what the decisions so far lead.

    ``serving``: the role of those that are the servers, ``"replica"`` once replicas had to take over.
    """

    def __init__(self, roles: Roles, rules: Rules) -> None:
        self.roles, self.rules = roles, rules
        self.lost: set[Node] = set()
        self.serving: Role = "server"
        self.held = Held(len(roles.workers), replicated=bool(roles.replicas))
        self.flight = Flight()
        self.requests: list[ModelRequested] = []
        #: That of the servers, in updates, when all that was decided on has been applied.
        self.version = rules.version
        #: Of servers and replicas, when all that was decided on has been applied: the next turn, the time.
        self.turns: dict[Role, int] = {"server": 0, "replica": 0}
        self.busy: dict[Role, float] = {"server": -math.inf, "replica": -math.inf}
        self.divergence = Divergence(rules.momentum)
        #: By turn, what the replicas catch up with: ``divergence`` does not count on it.
        self.catching_up: dict[int, CatchingUp] = {}
        self.ids = count()
        #: Bytes of an update, or of the model, at each server: those that were seen last.
        self.sizes: tuple[int, ...] = (0,) * len(roles.servers)
        #: Whether a lost node has left servers and replicas with different updates.
        self.apart = False
        self._rates: list[tuple[float, float] | None] = [None] * roles.hosts

    @property
    def servers(self) -> tuple[int, ...]:
        """The host of each."""
        return self.roles.servers if self.serving == "server" else self.roles.replicas

    @property
    def replicas(self) -> tuple[int, ...]:
        """The host of each; none if they are lost or have taken over."""
        return self.roles.replicas if self.held.replicated else ()

    @property
    def state(self) -> State:
        busy = self.busy
        under_way = len({push.turn for push in self.to_servers})
        return State(self.version, self.divergence, busy[self.serving], busy["replica"], self.coming, under_way)

    @property
    def to_servers(self) -> list[Push]:
        """The transfers under way that are applied to the servers."""
        return [
            transfer
            for transfer in self.flight.transfers()
            if isinstance(transfer, Push) and transfer.turn is not None and transfer.target.role == self.serving
        ]

    @property
    def coming(self) -> list[Divergence]:
        """The divergence after each of the turns with which the replicas catch up."""
        states: list[Divergence] = []
        for each in self.catching_up.values():
            states.append((states[-1] if states else self.divergence).copy())
            states[-1].replicate(each.updates)
        return states

    @property
    def is_copying(self) -> bool:
        """Whether copies of the servers are on their way to the replicas."""
        return any(isinstance(transfer, Copy) for transfer in self.flight.transfers())

    @property
    def may_serve(self) -> bool:
        """Whether the servers may have more updates: not while it takes a copy to bring the replicas as near as they must
        be."""
        return self.rules.divergence == math.inf or not self.is_copying

    def report(self, host: int, up: float, down: float) -> None:
        """What is to be had of a host's links, bytes per second.

        :raises InputError: a host that there is not, rates that are not finite numbers from 0.
        """
        if not 0 <= host < len(self._rates):
            raise InputError(f"bandwidth of host {host}: there are hosts 0 to {len(self._rates) - 1}")
        if not (0 <= up < math.inf and 0 <= down < math.inf):
            raise InputError(f"bandwidth of host {host}, {up} and {down} bytes/s: must be finite numbers from 0")
        if self._rates[host] != (up, down):
            self._rates[host] = (up, down)
            self.flight.outdate()

    @property
    def answerable(self) -> list[int]:
        """The workers that have asked for the model and may have it."""
        held, slowest = self.held, self.held.slowest()
        return [r.worker for r in self.requests if self.rules.may_begin(held.pushed[r.worker], slowest)]

    def rates(self) -> list[tuple[float, float]]:
        """Of every host, bytes per second out and in.

        :raises InputError: a host whose bandwidth was never reported.
        """
        known = [pair for pair in self._rates if pair is not None]
        if len(known) < len(self._rates):
            raise InputError(f"the bandwidth of host {self._rates.index(None)} was not reported yet")
        return known

    @property
    def gathering_seconds(self) -> float:
        """What the server's first aggregator takes to get all updates that no decision was made on, but for one, which may be
        on its host."""
        first = next(iter(self.relays(self.serving)), None)
        if first is None:
            return 0.0
        _, down = self.rates()[self.roles.host(Node("aggregator", first))]
        return (len(self.held.pending) - 1) * sum(self.sizes) / down if down else 0.0

    def relays(self, role: Role) -> list[int]:
        """The numbers of the aggregators of this role that are left, those first that pass an update on the soonest."""
        mine = len(self.roles.aggregators)
        theirs = mine + len(self.roles.replica_aggregators)
        numbers = range(mine, theirs) if role == "replica" else range(mine)
        if self.serving == "replica":
            numbers = range(theirs)
        rates = self.rates()

        def seconds_per_byte(number: int) -> float:
            up, down = rates[self.roles.host(Node("aggregator", number))]
            return 1 / up + 1 / down if up and down else math.inf

        return sorted(
            (number for number in numbers if Node("aggregator", number) not in self.lost), key=seconds_per_byte
        )

    def sides(self) -> Sides:
        """The hosts, with aggregators in the order of :meth:`relays`."""

        def hosts(role: Role) -> list[int]:
            return [self.roles.host(Node("aggregator", number)) for number in self.relays(role)]

        return Sides(self.servers, hosts(self.serving), self.replicas, hosts("replica") if self.replicas else [])

    def ask(self, request: ModelRequested) -> None:
        """A worker wants the model. One that has asked already is not counted twice."""
        self.sizes = request.sizes
        if all(other.worker != request.worker for other in self.requests):
            self.requests.append(request)

    def ask_again(self, workers: Iterable[int]) -> None:
        """What these workers were to get did not reach them."""
        for worker in workers:
            if Node("worker", worker) not in self.lost:
                self.ask(ModelRequested(worker, self.sizes))

    def launch(self, transfer: Transfer) -> None:
        """A transfer was decided on."""
        self.flight.add(transfer, self.roles.host(transfer.source), self.roles.host(transfer.target))
