"""Scheduling session: the core scheduler at work on the servers' model, or on the sum of one all-reduce."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from itertools import count

from sparkdl_comm.fabric.core import decisions as core
from sparkdl_comm.fabric.core import events
from sparkdl_comm.fabric.core.nodes import Node
from sparkdl_comm.fabric.core.rules import Rules
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.directory import Directory
from sparkdl_comm.fabric.dispatcher import Dispatcher, Orders
from sparkdl_comm.fabric.protocol import Message

_log = logging.getLogger(__name__)


class SchedulingSession:
    """Core scheduler of one model, and the dispatcher that turns its decisions into messages.

    :param number: 0 for the servers' model, else the number of the all-reduce.
    :param root: the worker that acts as the server of the all-reduce; None for the servers' model.
    :param send_message: sends a message to a node's daemon, if the node is still connected.
    """

    def __init__(
        self,
        number: int,
        directory: Directory,
        rules: Rules,
        send_message: Callable[[Node, Message], None],
        root: Node | None = None,
    ) -> None:
        self.root, self.directory = root, directory
        self.dispatcher = Dispatcher(directory, rules.momentum > 0, number, rules.version)
        self._core = Scheduler(directory.roles, rules)
        self._send_message = send_message
        self._ids = count()
        self._workers_with_sum: set[Node] = set()

    def add_update(self, worker: Node, number: int, version: int, norm: float, now: float) -> None:
        """Report that a worker has an update. ``number``: the worker's own number for it."""
        update = events.Update(next(self._ids), worker.index, self.directory.sizes, version, norm)
        self.dispatcher.add_update(update, number)
        self.observe(events.UpdateReady(update), now)

    def request_model(self, worker: Node, now: float) -> None:
        """Report that a worker requests the model."""
        self.observe(events.ModelRequested(worker.index, self.directory.sizes), now)

    def report_bandwidths(self, bandwidths: Mapping[int, tuple[float, float]], now: float) -> None:
        """Report the bandwidth of each host: bytes per second sent and received.

        Hosts that take no part in an all-reduce are ignored.
        """
        for host, (up, down) in bandwidths.items():
            if host < self.directory.roles.hosts:
                self.observe(events.BandwidthReported(host, up, down), now)

    def is_over(self, workers: Collection[Node]) -> bool:
        """Return True if this is an all-reduce and all these workers have received the sum."""
        return self.root is not None and self._workers_with_sum.issuperset(workers) and self.dispatcher.is_idle

    def end_transfer(self, transfer: int, version: int, now: float) -> None:
        """Report that a transfer has ended, and send the orders that follow. ``version``: of the target's model."""
        target = self.dispatcher.find_target(transfer)
        if target is not None and target.role == "worker":
            self._workers_with_sum.add(target)
        self._send_orders(self.dispatcher.end_transfer(transfer, version, now))
        self.observe(events.TransferEnded(transfer), now)

    def find_target(self, transfer: int) -> Node | None:
        """Return the target of a transfer that has not ended, as the daemons' node; otherwise None."""
        core_target = self.dispatcher.find_target(transfer)
        return None if core_target is None else self.to_daemon_node(core_target)

    def find_unfinished(self, source: Node) -> dict[Node, list[int]]:
        """Return the unfinished transfers of ``source`` by target, as :meth:`Dispatcher.find_unfinished`, with the
        daemons' nodes."""
        if self._is_excluded(source):
            return {}
        return {
            self.to_daemon_node(target): transfers
            for target, transfers in self.dispatcher.find_unfinished(source).items()
        }

    def lose_node(self, node: Node, versions: tuple[int, ...], has_replica: bool, now: float) -> None:
        """Report that a node is lost.

        :param versions: model versions of the replicas.
        :param has_replica: a replica is left that can take over from a lost server.
        :raises RankLostError: a server is lost, and no replica is left.
        """
        if self._is_excluded(node):
            return
        if node == self.root:
            self.observe(events.NodeLost(Node("server", 0)), now)
        if node.role == self.dispatcher.serving_role == "server" and has_replica:
            self.dispatcher.take_over()
        if node in self.directory.nodes:
            self.observe(events.NodeLost(node, versions), now)

    def observe(self, event: events.Event, now: float) -> None:
        """Pass an event to the core, and carry out the decisions that it causes."""
        self._carry_out(self._core.observe(event, now), now)

    def decide(self, now: float) -> None:
        """Have the core decide on all that is waiting, and carry out its decisions."""
        self._carry_out(self._core.decide(now), now)

    def is_due(self, now: float) -> bool:
        """Return True if something waits that could begin at once; see ``Scheduler.is_due``."""
        return self._core.is_due(now)

    def to_daemon_node(self, node: Node) -> Node:
        """Return the daemons' node for a node of the core. In an all-reduce the core's server is the root, a worker."""
        return self.root if self.root is not None and node.role == "server" else node

    def _is_excluded(self, node: Node) -> bool:
        """Return True for a server or replica of the model during an all-reduce, where the root is the only server."""
        return self.root is not None and node.role in ("server", "replica")

    def _carry_out(self, decisions: list[core.Decision], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, core.DroppedUpdate) and decision.reason == "norm":
                rank = self.directory.rank(Node("worker", decision.worker))
                _log.warning("refused an update of rank %d: its norm is not a finite number", rank)
        self._send_orders(self.dispatcher.dispatch(decisions, now))

    def _send_orders(self, orders: Orders) -> None:
        for node, message in orders:
            self._send_message(self.to_daemon_node(node), message)
