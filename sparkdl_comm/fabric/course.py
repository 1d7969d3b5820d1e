"""The core at work on one model: that of the servers, or the sum of one all-reduce."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from itertools import count

from sparkdl_comm.fabric.core import decisions as core
from sparkdl_comm.fabric.core import events
from sparkdl_comm.fabric.core.roles import Node
from sparkdl_comm.fabric.core.rules import Rules
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.directory import Directory
from sparkdl_comm.fabric.dispatch import Dispatch, Orders
from sparkdl_comm.fabric.protocol import Message

_log = logging.getLogger(__name__)


class Course:
    """``number``: 0 for the servers' model, else that of the all-reduce, whose ``root`` is the worker that is its server.
    ``tell`` says something to a node's daemon, if it is left."""

    def __init__(
        self,
        number: int,
        directory: Directory,
        rules: Rules,
        tell: Callable[[Node, Message], None],
        root: Node | None = None,
    ) -> None:
        self.root, self.directory = root, directory
        self.dispatch = Dispatch(directory, rules.momentum > 0, number, rules.version)
        self._core = Scheduler(directory.roles, rules)
        self._tell = tell
        self._ids = count()
        self._served: set[Node] = set()

    def ready(self, worker: Node, number: int, version: int, norm: float, now: float) -> None:
        """A worker has an update, ``number`` among its own."""
        update = events.Update(next(self._ids), worker.index, self.directory.sizes, version, norm)
        self.dispatch.ready(update, number)
        self.observe(events.UpdateReady(update), now)

    def wanted(self, worker: Node, now: float) -> None:
        self.observe(events.ModelRequested(worker.index, self.directory.sizes), now)

    def report(self, bandwidths: Mapping[int, tuple[float, float]], now: float) -> None:
        """Of each host, bytes per second that leave and arrive. An all-reduce has not all hosts."""
        for host, (up, down) in bandwidths.items():
            if host < self.directory.roles.hosts:
                self.observe(events.BandwidthReported(host, up, down), now)

    def is_over(self, workers: Collection[Node]) -> bool:
        """An all-reduce of which all these workers have the sum."""
        return self.root is not None and self._served.issuperset(workers) and self.dispatch.is_idle

    def ended(self, transfer: int, version: int, now: float) -> None:
        target = self.dispatch.target(transfer)
        if target is not None and target.role == "worker":
            self._served.add(target)
        self._send(self.dispatch.ended(transfer, version, now))
        self.observe(events.TransferEnded(transfer), now)

    def target(self, transfer: int) -> Node | None:
        """The node at which a transfer ends, if it has not; as the daemons are called."""
        found = self.dispatch.target(transfer)
        return None if found is None else self.actual(found)

    def unfinished(self, source: Node) -> dict[Node, list[int]]:
        """As that of :class:`Dispatch`, but as the daemons are called."""
        if self._has_no_part(source):
            return {}
        return {self.actual(target): found for target, found in self.dispatch.unfinished(source).items()}

    def lose(self, node: Node, versions: tuple[int, ...], has_replica: bool, now: float) -> None:
        """A node is lost. ``has_replica``: somebody is left to take over from a server. ``versions``: those of the replicas.

        :raises RankLostError: nobody is.
        """
        if self._has_no_part(node):
            return
        if node == self.root:
            self.observe(events.NodeLost(Node("server", 0)), now)
        if node.role == self.dispatch.serving == "server" and has_replica:
            self.dispatch.take_over()
        if node in self.directory.nodes:
            self.observe(events.NodeLost(node, versions), now)

    def observe(self, event: events.Event, now: float) -> None:
        self._carry_out(self._core.observe(event, now), now)

    def decide(self, now: float) -> None:
        self._carry_out(self._core.decide(now), now)

    def is_due(self, now: float) -> bool:
        """As that of the core."""
        return self._core.is_due(now)

    def actual(self, node: Node) -> Node:
        """The root of an all-reduce is a worker."""
        return self.root if self.root is not None and node.role == "server" else node

    def _has_no_part(self, node: Node) -> bool:
        """Servers of the model, and replicas, have none in an all-reduce, where the core calls the root a server."""
        return self.root is not None and node.role in ("server", "replica")

    def _carry_out(self, decisions: list[core.Decision], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, core.Dropped) and decision.reason == "norm":
                rank = self.directory.rank(Node("worker", decision.worker))
                _log.warning("an update of rank %d was refused: its norm is no finite number", rank)
        self._send(self.dispatch.decided(decisions, now))

    def _send(self, orders: Orders) -> None:
        for node, message in orders:
            self._tell(self.actual(node), message)
