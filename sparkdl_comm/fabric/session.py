"""Sessions of the scheduler's service, one for each model or all-reduce, with statistics of links, and fences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from sparkdl_comm.fabric.bandwidth import BandwidthEstimator
from sparkdl_comm.fabric.control import Directory
from sparkdl_comm.fabric.core import messages as core
from sparkdl_comm.fabric.core.messages import Node
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.dispatch import Dispatcher, Orders
from sparkdl_comm.fabric.params import Rules
from sparkdl_comm.fabric.protocol import Message, Rates, unpack_transfer_number

_log = logging.getLogger(__name__)
#: Seconds after its end during which a transfer can still appear in its sender's report.
_REPORTED_SECONDS = 1.0


@dataclass
class _Fence:
    """Lost node, and the nodes that still have to confirm what they received from it. ``deadline``: clock time in
    seconds."""

    lost: Node
    awaited: set[Node]
    deadline: float


class Fences:
    """Pending fences. A fence begins when a node is lost, and passes when all its possible receivers have answered."""

    def __init__(self) -> None:
        self._fences: dict[int, _Fence] = {}
        self._next_number = 0

    def begin(self, lost: Node, awaited: Iterable[Node], deadline: float) -> int:
        """Begin a fence for a lost node, and return its number, which the answers carry.

        Earlier fences no longer wait for the lost node.

        :param awaited: the nodes that must answer.
        :param deadline: clock time in seconds by which they must answer.
        """
        for fence in self._fences.values():
            fence.awaited.discard(lost)
        number, self._next_number = self._next_number, self._next_number + 1
        self._fences[number] = _Fence(lost, set(awaited), deadline)
        return number

    def record_answer(self, number: int, node: Node) -> None:
        """Record a node's answer to a fence."""
        if number in self._fences:
            self._fences[number].awaited.discard(node)

    def find_overdue(self, now: float) -> tuple[Node, Node] | None:
        """Return a lost node and one node that should have answered about it before ``now``; None if no answer is
        overdue."""
        for fence in self._fences.values():
            if fence.awaited and now > fence.deadline:
                return fence.lost, min(fence.awaited, key=str)
        return None

    def pop_passed(self) -> list[Node]:
        """Remove the fences that all receivers have answered, and return their lost nodes."""
        passed = [number for number, fence in self._fences.items() if not fence.awaited]
        return [self._fences.pop(number).lost for number in passed]


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
        update = core.Update(next(self._ids), worker.index, self.directory.sizes, version, norm)
        self.dispatcher.add_update(update, number)
        self.observe(update, now)

    def request_model(self, worker: Node, now: float) -> None:
        """Report that a worker requests the model."""
        self.observe(core.ModelRequested(worker.index, self.directory.sizes), now)

    def report_bandwidths(self, bandwidths: Mapping[int, tuple[float, float]], now: float) -> None:
        """Report the bandwidth of each host: bytes per second sent and received.

        Hosts that take no part in an all-reduce are ignored.
        """
        for host, (up, down) in bandwidths.items():
            if host < self.directory.roles.hosts:
                self.observe(core.BandwidthReported(host, up, down), now)

    def is_over(self, workers: Collection[Node]) -> bool:
        """Return True if this is an all-reduce and all these workers have received the sum."""
        return self.root is not None and self._workers_with_sum.issuperset(workers) and self.dispatcher.is_idle

    def end_transfer(self, transfer: int, version: int, now: float) -> None:
        """Report that a transfer has ended, and send the orders that follow.

        :param version: version of the target's model after the transfer.
        """
        target = self.dispatcher.find_target(transfer)
        if target is not None and target.role == "worker":
            self._workers_with_sum.add(target)
        self._send_orders(self.dispatcher.end_transfer(transfer, version, now))
        self.observe(core.TransferEnded(transfer), now)

    def find_target(self, transfer: int) -> Node | None:
        """Return the target of a transfer that has not ended, as the daemons' node; otherwise None."""
        core_target = self.dispatcher.find_target(transfer)
        return None if core_target is None else self.to_daemon_node(core_target)

    def find_unfinished(self, source: Node) -> dict[Node, list[int]]:
        """Return the numbers of the unfinished transfers of ``source``, by target.

        The targets are nodes of the daemons, not those of the scheduler's core.
        """
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
            self.observe(core.NodeLost(Node("server", 0)), now)
        if node.role == self.dispatcher.serving_role == "server" and has_replica:
            self.dispatcher.take_over()
        if node in self.directory.nodes:
            self.observe(core.NodeLost(node, versions), now)

    def observe(self, event: core.Event, now: float) -> None:
        """Pass an event to the core, and carry out the decisions that it causes."""
        self._carry_out(self._core.observe(event, now), now)

    def decide(self, now: float) -> None:
        """Schedule all pending updates, model requests and copies of state as one batch.

        The core scheduler decides. The session sends its decisions to the nodes as messages.
        """
        self._carry_out(self._core.decide(now), now)

    def is_due(self, now: float) -> bool:
        """Return True if something waits that could begin at once; see ``Scheduler.is_due``."""
        return self._core.is_due(now)

    def to_daemon_node(self, node: Node) -> Node:
        """Return the daemons' node for a node of the core. In an all-reduce the core's server is the root, a worker."""
        return self.root if self.root is not None and node.role == "server" else node

    def _is_excluded(self, node: Node) -> bool:
        """Return True if ``node`` must get no orders now.

        During an all-reduce the root takes the server's place, so the model's server and its replica are idle.
        """
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


class LinkStats:
    """Bandwidth estimates from the daemons' reports. ``link_rate``: bytes per second, assumed until then."""

    def __init__(self, directory: Directory, link_rate: float) -> None:
        self._directory = directory
        self._bandwidths = BandwidthEstimator(len(directory.hosts), link_rate)
        #: Recently ended transfers: the host of each target, and when it ended.
        self._recent_ends: dict[int, tuple[int, float]] = {}

    def bandwidths(self, now: float) -> dict[int, tuple[float, float]]:
        """Return the bandwidth of every host: bytes per second sent and received."""
        self._recent_ends = {
            number: end for number, end in self._recent_ends.items() if now - end[1] <= _REPORTED_SECONDS
        }
        return self._bandwidths.get_stable_estimates()

    def record_end(self, transfer: int, node: Node, now: float) -> None:
        """Record that a transfer has ended at the node."""
        self._recent_ends[transfer] = self._directory.host(node), now

    def add_report(self, node: Node, rates: Rates, sessions: Mapping[int, SchedulingSession], now: float) -> None:
        """Evaluate the report of a node's daemon, and pass the progress of transfers to their sessions."""
        targets: dict[int, int] = {}
        for flow in rates.flows:
            number, transfer = unpack_transfer_number(flow.transfer)
            session = sessions.get(number)
            target = None if session is None else session.find_target(transfer)
            if session is not None and target is not None:
                targets[flow.transfer] = self._directory.host(target)
                session.observe(core.TransferProgressed(transfer, flow.total), now)
            elif flow.transfer in self._recent_ends:
                targets[flow.transfer], _ = self._recent_ends[flow.transfer]
        self._bandwidths.observe(self._directory.host(node), rates, targets, now)
