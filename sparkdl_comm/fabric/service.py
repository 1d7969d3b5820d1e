"""The scheduler at work, a thread of rank 0: it hears all daemons, has the core decide on a batch now and then, and tells
them.

The core has no clock and no socket; here they are. A daemon whose connection breaks is lost: the core says how the others
go on.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from dataclasses import dataclass

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, RankLostError, SparkdlCommError
from sparkdl_comm.fabric.bandwidth import Bandwidths, Sample
from sparkdl_comm.fabric.control_link import ControlLink
from sparkdl_comm.fabric.core import decisions as core
from sparkdl_comm.fabric.core import events
from sparkdl_comm.fabric.core.roles import Node
from sparkdl_comm.fabric.core.rules import Rules
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.directory import Directory
from sparkdl_comm.fabric.dispatch import Dispatch, Orders
from sparkdl_comm.fabric.protocol import (
    CONTROL,
    Broken,
    End,
    Ended,
    Failed,
    Fence,
    Fenced,
    Leave,
    Message,
    Rates,
    Ready,
    Register,
    Wanted,
    Welcome,
)
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import Clock
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.units import parse_rate

#: Seconds for which a daemon may have nothing to say before its connection is looked at again.
_IDLE = 3600.0
#: Share by which a host's bandwidth has to change for the core to hear of it.
_CHANGED = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """``interval``: seconds between batches. ``link``: bytes per second that a host's links are taken to carry, each way,
    where the system does not know. ``replica_aggregators``: how many aggregators work for replicas. ``timeout``: seconds
    that a daemon may take for a message."""

    interval: float
    link: float
    replica_aggregators: int
    timeout: float

    @classmethod
    def of(cls, conf: CommConf) -> Options:
        """As the settings say."""
        link = parse_rate(conf.fabric_link_rate) / 8
        return cls(conf.fabric_batch_interval, link, conf.fabric_replica_aggregators, conf.timeout)


@dataclass
class _Peer:
    """A daemon's connection. ``node``: None until all are there."""

    register: Register
    link: ControlLink
    node: Node | None = None


@dataclass
class _Fence:
    """Who may have got something of a lost node, and has not said yet what."""

    lost: Node
    awaited: dict[Node, list[int]]


class SchedulerService:
    """Takes registrations at once; begins when all ranks of the gang, and all their aggregators, are there."""

    def __init__(self, gang: Gang, rules: Rules, options: Options, clock: Clock = time.monotonic) -> None:
        self._gang, self._rules, self._options, self._clock = gang, rules, options, clock
        self._heard: queue.SimpleQueue[tuple[_Peer, Message | None]] = queue.SimpleQueue()
        self._peers: list[_Peer] = []
        self._by_node: dict[Node, _Peer] = {}
        self._core: Scheduler
        self._bandwidths: Bandwidths
        self._told: dict[int, tuple[float, float]] = {}
        self._ids = 0
        self._fences: list[_Fence] = []
        self._begun = self._stopped = False
        self.dispatch: Dispatch
        self._directory: Directory
        gang.tolerate(lambda rank: None)  # the daemons' connections tell
        gang.serve(CONTROL, self._serve)
        self._thread = threading.Thread(target=self._run, name="sparkdl-fabric-scheduler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when all workers have left, or after the timeout; then all daemons' work ends."""
        self._thread.join(self._options.timeout)
        self.stop()
        self._thread.join(self._options.interval + 1.0)

    def stop(self) -> None:
        """From any thread: all daemons' work is to end now."""
        self._stopped = True

    def sockets(self) -> list[socket.socket]:
        return [peer.link.sock for peer in self._peers]

    # ---- threads of connections

    def _serve(self, sock: socket.socket, rank: int) -> None:
        link = ControlLink(sock, self._options.timeout, self._clock)
        try:
            register = link.receive(self._options.timeout)
            if not isinstance(register, Register) or register.rank != rank:
                raise ProtocolError(f"rank {rank} did not register with the fabric, but said {type(register).__name__}")
            peer = _Peer(register, link)
            self._heard.put((peer, register))
            self._listen(peer)
        finally:
            sock.close()

    def _listen(self, peer: _Peer) -> None:
        while True:
            try:
                message = peer.link.receive(_IDLE)
            except DeadlineError:
                continue
            except (OSError, SparkdlCommError) as exc:
                _log.info("the connection of rank %d, %s, ended: %s", peer.register.rank, peer.register.role, exc)
                self._heard.put((peer, None))
                return
            self._heard.put((peer, message))
            if isinstance(message, Leave):
                return

    # ---- the scheduler's thread

    def _run(self) -> None:
        try:
            tick = self._clock()
            while not self._stopped:
                left = tick - self._clock()
                if left <= 0:
                    tick += self._options.interval - left
                    if self._begun:
                        self._decide()
                    continue
                try:
                    self._hear(*self._heard.get(timeout=left))
                except queue.Empty:
                    continue
        except SparkdlCommError as exc:
            self._gang.announce_failure(Failure.of(exc, exc.rank or 0, phase="fabric"))
            self._end(exc.message)
        except Exception as exc:
            _log.exception("the fabric's scheduler failed")
            self._gang.announce_failure(Failure.of(exc, 0, phase="fabric"))
            self._end(f"the fabric's scheduler failed: {exc!r}")
            raise
        else:
            self._end("")

    def _end(self, why: str) -> None:
        self._stopped = True
        for peer in self._peers:
            self._tell(peer, End(why))

    def _hear(self, peer: _Peer, message: Message | None) -> None:
        """``message``: None if its connection has ended."""
        if isinstance(message, Register):
            self._peers.append(peer)
            self._begin_if_complete()
        elif not self._begun:
            raise RankLostError(
                f"rank {peer.register.rank} left the fabric before all were there", rank=peer.register.rank
            )
        elif peer.node in self._by_node:
            self._take(peer.node, peer, message)

    def _begin_if_complete(self) -> None:
        ranks = [peer.register for peer in self._peers if peer.register.role != "aggregator"]
        aggregators = len(self._peers) - len(ranks)
        if len(ranks) < self._gang.world or aggregators < sum(rank.aggregators for rank in ranks):
            return
        registered = [peer.register for peer in self._peers]
        directory = self._directory = Directory.of(registered, self._options.replica_aggregators)
        node_of = {id(register): node for node, register in directory.nodes.items()}
        for peer in self._peers:
            peer.node = node_of.get(id(peer.register))
            if peer.node is not None:
                self._by_node[peer.node] = peer
        self._core = Scheduler(directory.roles, self._rules)
        self._bandwidths = Bandwidths(directory.roles.hosts, self._options.link)
        self.dispatch = Dispatch(directory, self._rules.momentum > 0)
        self._report_bandwidths(self._clock())
        servers = [directory.nodes[Node("server", shard)].rank for shard in range(len(directory.elements))]
        for peer in self._peers:
            self._tell(peer, Welcome(servers, list(directory.elements)))
        self._begun = True

    def _decide(self) -> None:
        now = self._clock()
        self._report_bandwidths(now)
        self._carry_out(self._core.decide(now), now)

    def _take(self, node: Node, peer: _Peer, message: Message | None) -> None:
        now = self._clock()
        if isinstance(message, Ready):
            update = events.Update(self._ids, node.index, self._directory.sizes, message.version, message.norm)
            self._ids += 1
            self.dispatch.ready(update, message.update)
            self._observe(events.UpdateReady(update), now)
        elif isinstance(message, Wanted):
            self._observe(events.ModelRequested(node.index, self._directory.sizes), now)
        elif isinstance(message, Ended):
            if self.dispatch.target(message.transfer) == node:
                self._send(self.dispatch.ended(message.transfer, message.version, now))
                self._observe(events.TransferEnded(message.transfer), now)
        elif isinstance(message, Rates):
            self._rates(node, message, now)
        elif isinstance(message, Broken):
            self._broken(message, now)
        elif isinstance(message, Fenced):
            for fence in self._fences:
                if id(fence) == message.number:
                    fence.awaited.pop(node, None)
            self._pass_fences(now)
        elif isinstance(message, Failed):
            raise GangError(message.why, rank=peer.register.rank)
        elif message is None or isinstance(message, Leave):
            self._lost(node, message is not None, now)
        else:
            raise ProtocolError(f"rank {peer.register.rank} said {type(message).__name__} to the fabric's scheduler")

    def _rates(self, node: Node, rates: Rates, now: float) -> None:
        samples = []
        for flow in rates.flows:
            target = self.dispatch.target(flow.transfer)
            if target is None:
                continue
            host = self._directory.host(target)
            samples.append(Sample(flow.transfer, host, flow.seconds, flow.sent, flow.held))
            self._observe(events.TransferProgressed(flow.transfer, flow.total), now)
        host = self._directory.host(node)
        if rates.speed:
            self._bandwidths.limit(host, rates.speed)
        self._bandwidths.observe(host, rates.seconds, rates.up, rates.down, samples, now)

    def _report_bandwidths(self, now: float) -> None:
        for host in range(self._directory.roles.hosts):
            found, before = self._bandwidths.of(host), self._told.get(host, (0.0, 0.0))
            if any(abs(new - old) > _CHANGED * old for new, old in zip(found, before, strict=True)):
                self._told[host] = found
                self._observe(events.BandwidthReported(host, *found), now)

    def _broken(self, message: Broken, now: float) -> None:
        """A transfer could not be sent: its target cannot be reached any more."""
        target = self.dispatch.target(message.transfer)
        peer = None if target is None else self._by_node.get(target)
        if target is not None and peer is not None:
            self._tell(peer, End(f"it could not be reached: {message.why}"))
            self._lost(target, False, now)

    def _lost(self, node: Node, on_purpose: bool, now: float) -> None:
        if self._by_node.pop(node, None) is None:
            return
        if not on_purpose:
            _log.warning("the fabric goes on without %s %d, which was lost", node.role, node.index)
        fence = _Fence(node, {})
        if node.role in ("worker", "aggregator"):
            # What it sent may have arrived, and even be in the model, without our knowing it yet.
            sent = self.dispatch.unfinished(node)
            fence.awaited = {target: sent[target] for target in sent if target in self._by_node}
        self._fences.append(fence)
        for target, transfers in fence.awaited.items():
            self._tell(self._by_node[target], Fence(id(fence), transfers))
        for other in self._fences:
            other.awaited.pop(node, None)
        self._pass_fences(now)

    def _pass_fences(self, now: float) -> None:
        """The core hears of those lost nodes of which all is known that they have done."""
        passed = [fence for fence in self._fences if not fence.awaited]
        self._fences = [fence for fence in self._fences if fence.awaited]
        for fence in passed:
            self._conclude(fence.lost, now)

    def _conclude(self, node: Node, now: float) -> None:
        left = {other.role for other in self._by_node}
        if node.role == self.dispatch.serving == "server" and "replica" in left:
            self._send(self.dispatch.take_over())
        self._observe(events.NodeLost(node), now)
        if "worker" not in left:
            self._stopped = True

    def _rank(self, node: Node) -> int:
        return self._directory.nodes[node].rank

    def _observe(self, event: events.Event, now: float) -> None:
        self._carry_out(self._core.observe(event, now), now)

    def _carry_out(self, decisions: list[core.Decision], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, core.Dropped) and decision.reason == "norm":
                rank = self._rank(Node("worker", decision.worker))
                _log.warning("an update of rank %d was refused: its norm is no finite number", rank)
        self._send(self.dispatch.decided(decisions, now))

    def _send(self, orders: Orders) -> None:
        for node, message in orders:
            peer = self._by_node.get(node)
            if peer is not None:
                self._tell(peer, message)

    def _tell(self, peer: _Peer, message: Message) -> None:
        try:
            peer.link.send(message)
        except OSError as exc:
            _log.info("rank %d, %s, hears no more: %s", peer.register.rank, peer.register.role, exc)
