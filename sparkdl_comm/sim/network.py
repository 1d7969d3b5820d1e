"""The links of a topology, and who sends over them next.

A host has a NIC per rail, with a rate out and a rate in, which its ranks share; between switches of one rail there may be
trunks. A link carries as many bytes per second as a :class:`~sparkdl_comm.collectives.cost.Cost` says, so what headers take
is in its betas. Between ranks of one host messages take no NIC: a rank sends them at the cost's local rate, and receives them
at it.

A rank sends one message at a time over a rail, in the order of its programs, as the engine of the collectives does, of which
there may be several (``collectives/engine/rail.py``). Each begins with a start-up, the cost's alpha, in which the rank sends
nothing else there, and is there a latency after its last byte has passed the last link. What several ranks send into one
NIC, or over one trunk, shares it. What comes to a link faster than it passes on is queued in the switch: so a rank is
through with a message when its own NIC is, but for what is more than the queue holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple

from sparkdl_comm.collectives.cost import ALPHA, LOCAL_BETA, Cost
from sparkdl_comm.errors import PlanError
from sparkdl_comm.sim.engine import Action, Engine
from sparkdl_comm.sim.links import Links
from sparkdl_comm.topology import Topology

#: Of two messages that a rank could send, the one with the lesser turn goes first: (number of the collective, of its step).
Turn = tuple[int, int]
Path = tuple[int, ...]

#: What sums of rates are wrong by, as a share.
_SLACK = 1e-9
#: Bytes on an Ethernet of an MTU of 1500 for a byte of a TCP stream with time stamps: 14 + 20 + 32 more for each 1448.
HEADERS = 1514 / 1448
#: Seconds of a port's rate that its queue holds: those of the lab's links.
QUEUE = 0.05


class Network:
    """All ranks of ``topology``. ``links``: those of :meth:`path`, whose bytes per second are ``capacities``.

    Trunks that carry whatever the NICs below them send are never what limits, and are left out: all of a Fat-Tree's without
    ``oversub``.

    :param latency: seconds.
    :param queue: of each link, seconds that it needs for what is queued before it.
    """

    def __init__(
        self, engine: Engine, topology: Topology, cost: Cost, latency: float = 0.0, queue: float = QUEUE
    ) -> None:
        self.engine, self.topology, self.cost, self.latency = engine, topology, cost, latency
        rates = [1 / beta for beta in cost.betas]
        capacities = [rate for _ in topology.hosts for rate in rates for _ in ("out", "in")]
        #: Switch -> the link up from it, if it can limit, and the switch there.
        self._above: dict[int, tuple[Path, int]] = {}
        for trunk, below in zip(topology.trunks, _sent_over_trunks(topology, rates), strict=True):
            capacity = trunk.factor * rates[topology.switches[trunk.lower].rail]
            limits = capacity < below * (1 - _SLACK)
            self._above[trunk.lower] = (len(capacities),) if limits else (), trunk.upper
            capacities += [capacity] * 2 if limits else []
        self.trunks = len(capacities) - 2 * len(topology.hosts) * topology.rails
        self._first_local = len(capacities)
        capacities += [1 / cost.local] * 2 * topology.world
        self.capacities = tuple(capacities)
        self._queue = queue
        self.links = Links(engine, capacities)
        self._senders: dict[tuple[int, int, int], _Sender] = {}

    @property
    def can_be_alike(self) -> bool:
        """Whether ranks that do the same at the same times are through at the same times: they share no NIC and no trunk."""
        return self.topology.slots == 1 and not self.trunks

    def send(
        self,
        source: int,
        rail: int,
        path: Path,
        nbytes: float,
        turn: Turn,
        sent: Action,
        arrived: Action,
        lane: int = 0,
    ) -> None:
        """Has rank ``source`` send a message over ``rail``, on ``path``, when it is its turn. ``sent`` is called when its last
        byte has left, and ``arrived`` when that is there. ``lane``: messages of one take turns; several share the NIC, like
        groups of ranks with connections of their own."""
        sender = self._senders.setdefault((source, rail, lane), _Sender())
        heapq.heappush(sender.waiting, _Message(turn, next(sender.numbers), path, nbytes, sent, arrived))
        if not sender.is_busy:
            self._begin(sender)

    def path(self, source: int, target: int, rail: int) -> Path:
        """The links that a message from rank to rank takes.

        :raises PlanError: the rail does not join the ranks.
        """
        here, there = (self.topology.host_of(rank) for rank in (source, target))
        if here is there:
            return self._first_local + 2 * source, self._first_local + 2 * target + 1
        between = self._between(here.nics[rail].switch, there.nics[rail].switch)
        if between is None:
            raise PlanError(f"rank {source} does not reach rank {target} over rail {rail} of {self.topology}")
        return self.nic(here.index, rail), *between, self.nic(there.index, rail) + 1

    def nic(self, host: int, rail: int) -> int:
        """The link out of the host; the next one is the link into it."""
        return 2 * (host * self.topology.rails + rail)

    def _begin(self, sender: _Sender) -> None:
        sender.is_busy = bool(sender.waiting)
        if sender.is_busy:
            message = heapq.heappop(sender.waiting)
            self.engine.after(self.cost.alpha, partial(self._start, sender, message))

    def _start(self, sender: _Sender, message: _Message) -> None:
        """Lets it pass the sender's NIC, and at the same time all that is behind it, the last part out of the queue."""
        first, beyond = message.path[:1], message.path[1:]
        queued = min(message.nbytes, self._queue * min(self.capacities[link] for link in beyond))
        sent = _Both(partial(self._sent, sender, message))
        arrived = _Both(partial(self.engine.after, self.latency, message.arrived))

        def left() -> None:
            arrived.one()
            sent.one()

        def fits_the_queue() -> None:
            sent.one()
            self.links.start(beyond, queued, arrived.one)

        self.links.start(first, message.nbytes, left)
        self.links.start(beyond, message.nbytes - queued, fits_the_queue)

    def _sent(self, sender: _Sender, message: _Message) -> None:
        message.sent()
        self._begin(sender)

    def _between(self, one: int, other: int) -> Path | None:
        """The trunks from switch to switch: up to the first one that is above both, and down from there."""
        ups: dict[int, Path] = {one: ()}
        switch = one
        while switch in self._above:
            link, above = self._above[switch]
            ups[above] = ups[switch] + link
            switch = above
        downs: Path = ()
        switch = other
        while switch not in ups:
            if switch not in self._above:
                return None
            link, switch = self._above[switch]
            downs = tuple(up + 1 for up in link) + downs
        return ups[switch] + downs


def ethernet_cost(topology: Topology, alpha: float = ALPHA, local: float = LOCAL_BETA) -> Cost:
    """That of the topology's rates, less what headers take.

    :param alpha: seconds per message.
    :param local: seconds per byte between ranks of a host.
    :raises ConfError: it has no rates.
    """
    cost = Cost.of(topology, alpha)
    return replace(cost, betas=tuple(beta * HEADERS for beta in cost.betas), local=local)


def _sent_over_trunks(topology: Topology, rates: Sequence[float]) -> list[float]:
    """Bytes per second that the NICs below each trunk can send over it together."""
    trunks = {trunk.lower: (number, trunk.upper) for number, trunk in enumerate(topology.trunks)}
    found = [0.0] * len(trunks)
    for host in topology.hosts if trunks else ():
        for nic in host.nics:
            switch = nic.switch
            while switch in trunks:
                number, switch = trunks[switch]
                found[number] += rates[nic.rail]
    return found


class _Message(NamedTuple):
    """``number`` keeps the order of those of one turn."""

    turn: Turn
    number: int
    path: Path
    nbytes: float
    sent: Action
    arrived: Action


class _Both:
    """Calls ``done`` when two things have happened."""

    def __init__(self, done: Action) -> None:
        self._done = done
        self._left = 2

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            self._done()


class _Sender:
    """What a rank sends over a rail."""

    def __init__(self) -> None:
        self.waiting: list[_Message] = []
        self.numbers = count()
        self.is_busy = False
