"""Scheduler service: a thread of rank 0 that receives the daemons' messages, has the core decide, and sends the orders.

The core has no clock and no sockets; they are here. A daemon whose connection breaks is lost. The core then decides how
the other nodes continue.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import (
    ERRORS_BY_NAME,
    DeadlineError,
    GangError,
    InputError,
    ProtocolError,
    RankLostError,
    SparkdlCommError,
)
from sparkdl_comm.fabric import protocol
from sparkdl_comm.fabric.bandwidth import BandwidthEstimator
from sparkdl_comm.fabric.control import ControlInbox, Directory, Peer
from sparkdl_comm.fabric.core.messages import Node, TransferProgressed
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.session import SchedulingSession
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.units import parse_rate

#: Messages after which the core may have something to decide at once.
_DECISION_TRIGGERS = (protocol.Ready, protocol.Wanted, protocol.Reduce, protocol.Ended)
#: Seconds after its end during which a transfer can still appear in its sender's report.
_REPORTED_SECONDS = 1.0

_log = logging.getLogger(__name__)


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


class SchedulerService:
    """Scheduler of the gang's fabric. It begins when all ranks and their node processes have registered."""

    def __init__(self, gang: Gang, params: FabricParams, conf: CommConf, tolerates_loss: bool) -> None:
        """``tolerates_loss``: if True, a lost rank does not fail the gang."""
        self._gang, self._params, self._conf = gang, params, conf
        self._inbox, self._fences = ControlInbox(conf.timeout), Fences()
        self._peers: list[Peer] = []
        self._by_node: dict[Node, Peer] = {}
        self._sessions: dict[int, SchedulingSession] = {}
        self._bandwidths: BandwidthEstimator
        #: Recently ended transfers, by the daemons' numbers: the host of each target, and when it ended.
        self._recent_ends: dict[int, tuple[int, float]] = {}
        #: Seconds to wait for :class:`Fenced`. A daemon may itself wait for the timeout before it answers.
        self._answer_seconds = 2 * conf.timeout
        #: Model version that each replica last reported.
        self._replica_versions: dict[Node, int] = {}
        self._has_begun = self._is_stopped = False
        #: A message has arrived after which a session may be due.
        self._needs_decision = False
        self._directory: Directory
        if tolerates_loss:
            gang.tolerate(lambda rank: None)  # the daemons' connections show lost ranks
        gang.serve(protocol.CONTROL_SERVICE, self._inbox.serve)
        self._thread = threading.Thread(target=self._run, name="sparkdl-fabric-scheduler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until all workers have left, at most for the timeout. Then end the work of all daemons."""
        self._thread.join(self._conf.timeout)
        self.stop()
        self._thread.join(self._conf.fabric.batch_interval + 1.0)

    def stop(self) -> None:
        """End the work of all daemons now. May be called from any thread."""
        self._is_stopped = True

    @property
    def session(self) -> SchedulingSession:
        """Session of the servers' model."""
        return self._sessions[0]

    def sockets(self) -> list[socket.socket]:
        return [peer.link.sock for peer in self._peers]

    # ---- the scheduler's thread

    def _run(self) -> None:
        try:
            tick = time.monotonic()
            while not self._is_stopped:
                seconds_left = tick - time.monotonic()
                if seconds_left <= 0:
                    if self._has_begun:
                        self._decide()
                    # Count from now, so that messages are received however long the decision took.
                    seconds_left = self._conf.fabric.batch_interval
                    tick = time.monotonic() + seconds_left
                received = self._inbox.next_message(0.0 if self._needs_decision else seconds_left)
                if received is not None:
                    self._receive(*received)
                elif self._needs_decision:  # the queue is empty
                    self._decide_if_due()
        except SparkdlCommError as exc:
            self._gang.announce_failure(Failure.of(exc, exc.rank or 0, phase="fabric"))
            self._end_daemons(exc.message)
        except Exception as exc:
            _log.exception("the fabric's scheduler failed")
            self._gang.announce_failure(Failure.of(exc, 0, phase="fabric"))
            self._end_daemons(f"the fabric's scheduler failed: {exc!r}")
            raise
        else:
            self._end_daemons("")

    def _end_daemons(self, why: str) -> None:
        self._is_stopped = True
        for peer in self._peers:
            peer.send(protocol.End(why))

    def _receive(self, peer: Peer, message: protocol.Message | None) -> None:
        """Handle a message of a daemon; None if its connection has ended."""
        if self._has_begun:
            if peer.node in self._by_node:
                self._handle(peer.node, peer, message)
            elif isinstance(message, protocol.Register):
                peer.send(
                    protocol.End(f"rank {message.rank}, {message.role}, registered after the fabric's job had begun")
                )
        elif isinstance(message, protocol.Register):
            self._add_peer(peer)
            self._begin_if_complete()
        else:
            raise RankLostError(
                f"rank {peer.register.rank} left the fabric before all ranks had registered", rank=peer.register.rank
            )

    def _add_peer(self, peer: Peer) -> None:
        """Add a daemon that has registered.

        :raises ProtocolError: its connection has registered before, or its rank has, unless it is a node process.
        """
        rank, helps = peer.register.rank, peer.register.helps
        is_known = any(
            other is peer or (other.register.rank == rank and not helps and not other.register.helps)
            for other in self._peers
        )
        self._peers.append(peer)  # a refused daemon, too, must learn how the job ends
        if is_known:
            raise ProtocolError(f"rank {rank}, {peer.register.role}, registered with the fabric twice", rank=rank)

    def _begin_if_complete(self) -> None:
        ranks = [peer.register for peer in self._peers if not peer.register.helps]
        if len(ranks) < self._gang.world or len(self._peers) < self._gang.world + sum(rank.helpers for rank in ranks):
            return
        registered = [peer.register for peer in self._peers]
        self._directory = directory = Directory.of(registered, self._conf.fabric.replica_aggregators)
        node_of = {id(register): node for node, register in directory.nodes.items()}
        for peer in self._peers:
            peer.node = node_of.get(id(peer.register))
            if peer.node is not None:
                self._by_node[peer.node] = peer
        self._replica_versions = {node: self._params.version for node in directory.nodes if node.role == "replica"}
        self._bandwidths = BandwidthEstimator(len(directory.hosts), parse_rate(self._conf.fabric.link_rate) / 8)
        if directory.elements:
            self._sessions[0] = SchedulingSession(0, directory, self._params, self._send_to)
            self._sessions[0].report_bandwidths(self._bandwidths.get_stable_estimates(), time.monotonic())
        servers = [directory.nodes[Node("server", shard)].rank for shard in range(len(directory.elements))]
        for peer in self._peers:
            peer.send(protocol.Welcome(servers, list(directory.elements)))
        self._has_begun = True

    def _decide(self) -> None:
        now = time.monotonic()
        self._check_fences(now)
        self._recent_ends = {
            number: end for number, end in self._recent_ends.items() if now - end[1] <= _REPORTED_SECONDS
        }
        bandwidths = self._bandwidths.get_stable_estimates()
        for number, session in list(self._sessions.items()):
            session.report_bandwidths(bandwidths, now)
            session.decide(now)
            if session.root is not None and session.is_over(self._workers()):
                self._send_to(session.root, protocol.Reduced(number))
                del self._sessions[number]

    def _decide_if_due(self) -> None:
        self._needs_decision = False
        now = time.monotonic()
        if any(session.is_due(now) for session in self._sessions.values()):
            self._decide()

    def _handle(self, node: Node, peer: Peer, message: protocol.Message | None) -> None:
        now = time.monotonic()
        self._needs_decision |= isinstance(message, _DECISION_TRIGGERS)
        if isinstance(message, protocol.Ready):
            self._sessions[0].add_update(node, message.update, message.version, message.norm, now)
        elif isinstance(message, protocol.Wanted):
            self._sessions[0].request_model(node, now)
        elif isinstance(message, protocol.Reduce):
            self._handle_reduce(node, message, now)
        elif isinstance(message, protocol.Ended):
            number, transfer = protocol.unpack_transfer_number(message.transfer)
            session = self._sessions.get(number)
            if node.role == "replica":
                self._replica_versions[node] = message.version
            if session is not None and session.find_target(transfer) == node:
                self._recent_ends[message.transfer] = self._directory.host(node), now
                session.end_transfer(transfer, message.version, now)
        elif isinstance(message, protocol.Rates):
            self._handle_rates(node, message, now)
        elif isinstance(message, protocol.Broken):
            self._handle_broken(message, now)
        elif isinstance(message, protocol.Fenced):
            self._fences.record_answer(message.number, node)
            self._report_lost_nodes(now)
        elif isinstance(message, protocol.Failed):
            raise ERRORS_BY_NAME.get(message.error, GangError)(message.why, rank=message.rank)
        elif message is None or isinstance(message, protocol.Leave):
            self._handle_lost(node, message is not None, now)
        else:
            raise ProtocolError(
                f"rank {peer.register.rank} sent the fabric's scheduler an unexpected {type(message).__name__}"
            )

    def _handle_reduce(self, node: Node, message: protocol.Reduce, now: float) -> None:
        """Record a worker's vector for an all-reduce. The first vector begins it, with a root drawn by its number."""
        rank = self._directory.rank(node)
        if not math.isfinite(message.norm):
            raise InputError(
                f"rank {rank}'s vector in all-reduce number {message.number}: its norm is not finite", rank=rank
            )
        session = self._sessions.get(message.number)
        if session is None:
            root = random.Random(message.number).choice(self._workers())
            directory = self._directory.for_reduction(root, message.elements)
            session = SchedulingSession(message.number, directory, FabricParams("bsp"), self._send_to, root)
            self._sessions[message.number] = session
            session.report_bandwidths(self._bandwidths.get_stable_estimates(), now)
            for lost in self._directory.nodes.keys() - self._by_node.keys():
                session.lose_node(lost, (), False, now)
        if session.directory.elements != (message.elements,):
            raise InputError(
                f"all-reduce number {message.number} has {message.elements} elements at rank {rank}, but"
                f" {session.directory.elements[0]} at other ranks."
                " All workers must call the same all-reduces in the same order"
            )
        session.add_update(node, 0, 0, message.norm, now)
        session.request_model(node, now)

    def _handle_rates(self, node: Node, rates: protocol.Rates, now: float) -> None:
        """Evaluate the report of a node's daemon, and pass the progress of transfers to their sessions."""
        targets: dict[int, int] = {}
        for flow in rates.flows:
            number, transfer = protocol.unpack_transfer_number(flow.transfer)
            session = self._sessions.get(number)
            target = None if session is None else session.find_target(transfer)
            if session is not None and target is not None:
                targets[flow.transfer] = self._directory.host(target)
                session.observe(TransferProgressed(transfer, flow.total), now)
            elif flow.transfer in self._recent_ends:
                targets[flow.transfer], _ = self._recent_ends[flow.transfer]
        self._bandwidths.observe(self._directory.host(node), rates, targets, now)

    def _handle_broken(self, message: protocol.Broken, now: float) -> None:
        """Handle a transfer that could not be sent: its target counts as lost."""
        number, transfer = protocol.unpack_transfer_number(message.transfer)
        session = self._sessions.get(number)
        target = None if session is None else session.find_target(transfer)
        peer = None if target is None else self._by_node.get(target)
        if target is not None and peer is not None:
            peer.send(protocol.End(f"this node could not be reached: {message.why}"))
            self._handle_lost(target, False, now)

    def _handle_lost(self, node: Node, on_purpose: bool, now: float) -> None:
        if self._by_node.pop(node, None) is None:
            return
        if not on_purpose:
            _log.warning("lost %s %d: the fabric continues without it", node.role, node.index)
        # Its transfers may have arrived, and even be in the model, before we know. A replica that takes over must first
        # have reported all that it has.
        replicas = (other for other in self._by_node if node.role == "server" and other.role == "replica")
        awaited: dict[Node, list[int]] = {replica: [] for replica in replicas}
        for session in self._sessions.values():
            for target, transfers in session.find_unfinished(node).items():
                if target in self._by_node:
                    awaited.setdefault(target, []).extend(transfers)
        number = self._fences.begin(node, awaited, now + self._answer_seconds)
        for target, transfers in awaited.items():
            self._by_node[target].send(protocol.Fence(number, transfers, self._directory.describe(node)))
        self._report_lost_nodes(now)

    def _check_fences(self, now: float) -> None:
        overdue = self._fences.find_overdue(now)
        if overdue is not None:
            lost, overdue_node = map(self._directory.describe, overdue)
            raise DeadlineError(
                f"{overdue_node} did not report within {self._answer_seconds:g} s what it received from {lost},"
                f" which was lost; set {TIMEOUT_KEY}",
                rank=self._directory.rank(overdue[1]),
            )

    def _report_lost_nodes(self, now: float) -> None:
        """Report to the core the lost nodes whose receivers have all answered."""
        roles_left = {other.role for other in self._by_node}
        for lost in self._fences.pop_passed():
            versions = tuple(
                self._replica_versions[Node("replica", shard)] for shard in range(len(self._replica_versions))
            )
            for session in self._sessions.values():
                session.lose_node(lost, versions, "replica" in roles_left, now)
        if "worker" not in roles_left:
            self._is_stopped = True

    def _workers(self) -> list[Node]:
        """Return the workers that are left, by index."""
        return sorted((node for node in self._by_node if node.role == "worker"), key=lambda node: node.index)

    def _send_to(self, node: Node, message: protocol.Message) -> None:
        peer = self._by_node.get(node)
        if peer is not None:
            peer.send(message)
