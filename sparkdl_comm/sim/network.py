"""Links of a topology, and the order in which ranks send over them.

A host has a NIC per rail, with a rate out and a rate in, which its ranks share. There may be trunks between switches of
one rail. Link rates are those of a :class:`~sparkdl_comm.collectives.cost.Cost`, whose betas include the headers.
Messages between ranks of one host use no NIC: a rank sends and receives them at the cost's local rate.

A rank sends one message at a time over a rail, in the order of its programs, like the engine of the collectives
(``collectives/engine/connection.py``). A network may have several such lanes per rank and rail. Each message begins with a
start-up, the cost's alpha, in which the rank sends nothing else there. It arrives a latency after its last byte has
passed the last link. Messages of several ranks into one NIC, or over one trunk, share it. The switch queues bytes that
arrive faster than a link forwards them. So a rank has finished sending when its own NIC has, except for what exceeds
the queue.
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
from sparkdl_comm.sim.engine import Action, Engine, Links
from sparkdl_comm.topology import Topology

#: Priority of a message, lowest first: (number of the collective, number of its step).
Turn = tuple[int, int]
Path = tuple[int, ...]

#: Relative error of sums of rates.
_SLACK = 1e-9
#: Ethernet bytes per byte of a TCP stream with time stamps, MTU 1500: 14 + 20 + 32 header bytes per 1448.
HEADERS = 1514 / 1448
#: Length of a port's queue, in seconds of its rate, as in the lab's links.
QUEUE = 0.05


class Network:
    """Links and senders of all ranks of ``topology``. ``links``: the links of :meth:`path`, with ``capacities`` in
    bytes per second.

    Trunks that can carry everything that the NICs below them send are never a bottleneck, and are left out. These are
    all trunks of a Fat-Tree without ``oversub``.

    :param latency: seconds from the last link to the arrival.
    :param queue: length of the queue before each link, in seconds of the link's rate.
    """

    def __init__(
        self, engine: Engine, topology: Topology, cost: Cost, latency: float = 0.0, queue: float = QUEUE
    ) -> None:
        self.engine, self.topology, self.cost, self.latency = engine, topology, cost, latency
        rates = [1 / beta for beta in cost.betas]
        capacities = [rate for _ in topology.hosts for rate in rates for _ in ("out", "in")]
        #: Switch -> the link up from it, if it can be a bottleneck, and the switch above.
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
        """True if equal programs at equal times finish at equal times: ranks share no NIC and no trunk."""
        return self.topology.ranks_per_host == 1 and not self.trunks

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
        """Send a message from rank ``source`` over ``rail``, on ``path``, when its turn comes.

        :param nbytes: bytes of the message.
        :param turn: priority among the waiting messages.
        :param sent: called when the last byte has left.
        :param arrived: called when the last byte has arrived.
        :param lane: messages of one lane are sent one at a time. Several lanes share the NIC, like groups of ranks with
            separate connections.
        """
        sender = self._senders.setdefault((source, rail, lane), _Sender())
        heapq.heappush(sender.waiting, _Message(turn, next(sender.numbers), path, nbytes, sent, arrived))
        if not sender.is_busy:
            self._begin(sender)

    def path(self, source: int, target: int, rail: int) -> Path:
        """Return the links of a message from rank to rank.

        :raises PlanError: the rail does not connect the ranks.
        """
        source_host, target_host = (self.topology.host_of(rank) for rank in (source, target))
        if source_host is target_host:
            return self._first_local + 2 * source, self._first_local + 2 * target + 1
        between = self._between(source_host.nics[rail].switch, target_host.nics[rail].switch)
        if between is None:
            raise PlanError(f"rank {source} does not reach rank {target} over rail {rail} of {self.topology}")
        return self.nic(source_host.index, rail), *between, self.nic(target_host.index, rail) + 1

    def nic(self, host: int, rail: int) -> int:
        """Return the number of the link out of the host. The next number is the link into it."""
        return 2 * (host * self.topology.rails + rail)

    def _begin(self, sender: _Sender) -> None:
        sender.is_busy = bool(sender.waiting)
        if sender.is_busy:
            message = heapq.heappop(sender.waiting)
            self.engine.after(self.cost.alpha, partial(self._start, sender, message))

    def _start(self, sender: _Sender, message: _Message) -> None:
        """Start the message on the sender's NIC and, at the same time, on all links after it.

        The part that fits the queue passes those links last.
        """
        first, beyond = message.path[:1], message.path[1:]
        queued = min(message.nbytes, self._queue * min(self.capacities[link] for link in beyond))
        sent = _Join(partial(self._sent, sender, message))
        arrived = _Join(partial(self.engine.after, self.latency, message.arrived))

        def left() -> None:
            arrived.arrive()
            sent.arrive()

        def on_queue_fit() -> None:
            sent.arrive()
            self.links.start(beyond, queued, arrived.arrive)

        self.links.start(first, message.nbytes, left)
        self.links.start(beyond, message.nbytes - queued, on_queue_fit)

    def _sent(self, sender: _Sender, message: _Message) -> None:
        message.sent()
        self._begin(sender)

    def _between(self, one: int, other: int) -> Path | None:
        """Return the trunks between two switches: up to the first switch above both, and down from there."""
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
    """Return the cost of the topology's rates, reduced by headers.

    :param alpha: seconds per message.
    :param local: seconds per byte between ranks of a host.
    :raises ConfError: the topology has no rates.
    """
    cost = Cost.of(topology, alpha)
    return replace(cost, betas=tuple(beta * HEADERS for beta in cost.betas), local=local)


def _sent_over_trunks(topology: Topology, rates: Sequence[float]) -> list[float]:
    """Return the bytes per second that the NICs below each trunk can send over it together."""
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
    """Message that waits to be sent. ``number`` keeps the order of messages with equal turns."""

    turn: Turn
    number: int
    path: Path
    nbytes: float
    sent: Action
    arrived: Action


class _Join:
    """Callback after two events: it calls ``on_done`` when both have happened."""

    def __init__(self, on_done: Action) -> None:
        self._on_done = on_done
        self._left = 2

    def arrive(self) -> None:
        self._left -= 1
        if not self._left:
            self._on_done()


class _Sender:
    """Messages of a rank over a rail in one lane."""

    def __init__(self) -> None:
        self.waiting: list[_Message] = []
        self.numbers = count()
        self.is_busy = False
