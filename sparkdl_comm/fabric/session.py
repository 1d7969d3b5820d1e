"""Session of the scheduler's service, one for each model or all-reduce: the core decides, the daemons get messages.

Both ends of a transfer get a message, the receiver first. A transfer that waits for others at its own source, as an
aggregator's does, is ordered at once: the source does the waiting. A transfer that waits for others elsewhere is
ordered when these have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sparkdl_comm.fabric import protocol
from sparkdl_comm.fabric.bandwidth import PROBE_FACTOR
from sparkdl_comm.fabric.control import Directory
from sparkdl_comm.fabric.core import messages as core
from sparkdl_comm.fabric.core.messages import Node, Role, Update
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.params import FabricParams

_log = logging.getLogger(__name__)
#: Decisions that begin a transfer.
Sendable = core.Push | core.ModelTransfer | core.StateCopy


@dataclass
class _Delivery:
    """Progress of an update into the model.

    - ``number``: the worker's own number for the update.
    - ``missing_transfers``: transfers to the nodes serving the model that have not ended.
    - ``replica_version``: the replica's version that contains the update; -1 if none does.
    - ``is_reported``: the worker has been told the outcome.
    """

    update: Update
    number: int
    missing_transfers: set[int] = field(default_factory=set)
    replica_version: int = -1
    is_reported: bool = False


@dataclass
class _HeldOrder:
    """Transfer whose order is held back.

    - ``awaited``: the transfers to other nodes that must end first.
    - ``inputs``: the transfers to its source that it is made from. They may end before it is ordered.
    """

    awaited: set[int]
    inputs: list[int]


class SchedulingSession:
    """Scheduler of one model or all-reduce.

    - ``serving_role``: role of the nodes that serve the model: ``replica`` after the servers were lost.
    - ``delays``: the delay of each applied update, in order. A delay counts the updates applied since the version that
      the update was computed from, itself included.
    - ``dropped``: the number of updates not applied, by reason.
    - ``lost_updates``: the updates that the servers had applied, and the replicas had not, when the servers were lost.

    :param number: 0 for the servers' model, else the number of the all-reduce.
    :param send_message: sends a message to a node's daemon, if the node is still connected.
    :param root: the worker that acts as the server of the all-reduce; None for the servers' model.
    """

    def __init__(
        self,
        number: int,
        directory: Directory,
        params: FabricParams,
        send_message: Callable[[Node, protocol.Message], None],
        root: Node | None = None,
    ) -> None:
        self.root, self.directory = root, directory
        self._number, self._has_momentum, self._send_message = number, params.momentum > 0, send_message
        self._core = Scheduler(directory.roles, params)
        self._ids = count()
        self._updates: dict[int, _Delivery] = {}
        self._transfers: dict[int, Sendable] = {}
        self._held_orders: dict[int, _HeldOrder] = {}
        self._workers_with_sum: set[Node] = set()
        self._versions: dict[Role, int] = {"server": params.version, "replica": params.version}
        self.serving_role: Role = "server"
        self.delays: list[int] = []
        self.dropped: dict[str, int] = {}
        self.lost_updates = 0

    def add_update(self, worker: Node, number: int, version: int, norm: float, now: float) -> None:
        """Report that a worker has an update. ``number``: the worker's own number for it."""
        update = Update(next(self._ids), worker.index, self.directory.sizes, version, norm)
        self._updates[update.id] = _Delivery(update, number)
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

    def end_transfer(self, transfer: int, version: int, now: float) -> None:
        """Report that a transfer has ended, and send the orders that this allows.

        :param transfer: the core's number for the transfer.
        :param version: model version of the target after it has applied the transfer. Ignored unless the transfer is a
            push to a server or replica.
        """
        ended = self._transfers.pop(transfer, None)
        if ended is not None and ended.target.role == "worker":
            self._workers_with_sum.add(ended.target)
        if isinstance(ended, core.Push) and ended.target.role in ("server", "replica"):
            self._record_applied(ended, version)
        self._release(transfer, now)
        self.observe(core.TransferEnded(transfer), now)

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
        if node.role == self.serving_role == "server" and has_replica:
            self.serving_role = "replica"
            self.lost_updates = max(0, self._versions["server"] - self._versions["replica"])
        if node in self.directory.nodes:
            self.observe(core.NodeLost(node, versions), now)

    def observe(self, event: core.Event, now: float) -> None:
        """Pass an event to the core, and carry out the decisions that it causes."""
        self.carry_out(self._core.observe(event, now), now)

    def decide(self, now: float) -> None:
        """Schedule all pending updates, model requests and copies of state as one batch.

        The core scheduler decides. The session sends its decisions to the nodes as messages.
        """
        self.carry_out(self._core.decide(now), now)

    def is_due(self, now: float) -> bool:
        """Return True if something waits that could begin at once; see ``Scheduler.is_due``."""
        return self._core.is_due(now)

    def is_over(self, workers: Collection[Node]) -> bool:
        """Return True if this is an all-reduce, all these workers have the sum, and no transfer is under way."""
        return self.root is not None and self._workers_with_sum.issuperset(workers) and not self._transfers

    def find_target(self, transfer: int) -> Node | None:
        """Return the target of a transfer that has not ended, as the daemons' node; otherwise None."""
        found = self._transfers.get(transfer)
        return None if found is None else self._to_daemon_node(found.target)

    def find_unfinished(self, source: Node) -> dict[Node, list[int]]:
        """Return the daemons' numbers of the transfers of ``source`` that were ordered and have not ended, by target.

        The targets are nodes of the daemons, not those of the scheduler's core.
        """
        found: dict[Node, list[int]] = {}
        if self._is_excluded(source):
            return found
        for transfer in self._transfers.values():
            if transfer.source == source and transfer.id not in self._held_orders:
                found.setdefault(self._to_daemon_node(transfer.target), []).append(self._daemon_number(transfer.id))
        return found

    def carry_out(self, decisions: Sequence[core.Decision], now: float) -> None:
        """Send the messages that carry out decisions of the core, made at ``now``."""
        transfers = [d for d in decisions if isinstance(d, Sendable)]
        self._transfers |= {d.id: d for d in transfers}
        for push in transfers:
            if isinstance(push, core.Push) and push.target.role == self.serving_role:
                for number in push.updates:
                    self._updates[number].missing_transfers.add(push.id)
        for transfer in transfers:
            self._send(transfer.target, self._make_expect(transfer, transfers))
        for decision in sorted(decisions, key=lambda d: not isinstance(d, core.SmallerSum)):
            self._carry_out_one(decision, now)

    # ---- private

    def _send(self, node: Node, message: protocol.Message) -> None:
        self._send_message(self._to_daemon_node(node), message)

    def _to_daemon_node(self, node: Node) -> Node:
        """Return the daemons' node for a node of the core. In an all-reduce the core's server is the root, a worker."""
        return self.root if self.root is not None and node.role == "server" else node

    def _is_excluded(self, node: Node) -> bool:
        """Return True if ``node`` must get no orders now.

        During an all-reduce the root takes the server's place, so the model's server and its replica are idle.
        """
        return self.root is not None and node.role in ("server", "replica")

    def _daemon_number(self, transfer: int) -> int:
        """Return the number by which daemons know a transfer of the core."""
        return protocol.pack_transfer_number(self._number, transfer)

    def _carry_out_one(self, decision: core.Decision, now: float) -> None:
        if isinstance(decision, Sendable):
            reaching = {other: self._transfers[other].target for other in decision.after if other in self._transfers}
            awaited = {other for other, target in reaching.items() if target != decision.source}
            inputs = [other for other, target in reaching.items() if target == decision.source]
            if awaited:
                self._held_orders[decision.id] = _HeldOrder(awaited, inputs)
            else:
                self._send(decision.source, self._make_send(decision, inputs, now))
        elif isinstance(decision, core.SkippedTurn):
            self._send(decision.target, protocol.Skip(decision.turn, self._number, decision.count))
        elif isinstance(decision, core.DroppedUpdate | core.ReleasedUpdate):
            self._end_update(decision)
        elif (transfer := self._transfers.get(decision.transfer)) is not None:
            self._change_transfer(transfer, decision, now)

    def _change_transfer(
        self,
        transfer: Sendable,
        decision: core.NewSchedule | core.SmallerSum | core.NewTurn | core.Cancellation,
        now: float,
    ) -> None:
        number = self._daemon_number(transfer.id)
        if isinstance(decision, core.NewSchedule):
            self._transfers[transfer.id] = replace(transfer, schedule=decision.schedule)
            if transfer.id not in self._held_orders:  # its later order uses the new schedule
                self._send(transfer.source, protocol.Repace(number, relative_slices(decision.schedule, now)))
        elif isinstance(decision, core.Cancellation):
            del self._transfers[transfer.id]
            self._held_orders.pop(transfer.id, None)
            for delivery in self._updates.values():
                delivery.missing_transfers.discard(transfer.id)
            for end in (transfer.target, transfer.source):
                self._send(end, protocol.Cancel(number))
            self._release(transfer.id, now)
        elif not isinstance(transfer, core.Push):
            return
        elif isinstance(decision, core.NewTurn):
            self._transfers[transfer.id] = replace(transfer, turn=decision.turn)
            self._send(transfer.target, protocol.Reorder(number, decision.turn))
        else:
            scale = dict(zip(transfer.updates, transfer.scales, strict=True))
            scales = tuple(scale[update] for update in decision.updates)
            self._transfers[transfer.id] = replace(transfer, updates=decision.updates, scales=scales)
            least = self._least_version(decision.updates)
            self._send(transfer.source, protocol.Regroup(number, len(decision.updates), least))

    def _end_update(self, decision: core.DroppedUpdate | core.ReleasedUpdate) -> None:
        delivery, worker = self._updates.pop(decision.update), Node("worker", decision.worker)
        if isinstance(decision, core.DroppedUpdate):
            if decision.reason == "norm":
                rank = self.directory.rank(worker)
                _log.warning("refused an update of rank %d: its norm is not a finite number", rank)
            self.dropped[decision.reason] = self.dropped.get(decision.reason, 0) + 1
            self._report_outcome(delivery, -1, decision.reason)
        elif not delivery.is_reported:  # the server was lost before it reported the update
            self._report_outcome(delivery, delivery.replica_version, "" if delivery.replica_version >= 0 else "lost")
        self._send(worker, protocol.Release(delivery.number, self._number))

    def _report_outcome(self, delivery: _Delivery, version: int, why: str = "") -> None:
        delivery.is_reported = True
        outcome = protocol.Outcome(delivery.number, version, why, self._number)
        self._send(Node("worker", delivery.update.worker), outcome)

    def _release(self, transfer: int, now: float) -> None:
        """Send the orders of the transfers that waited only for this one."""
        for number, held in list(self._held_orders.items()):
            held.awaited.discard(transfer)
            if not held.awaited:
                del self._held_orders[number]
                ready = self._transfers[number]
                self._send(ready.source, self._make_send(ready, held.inputs, now))

    def _record_applied(self, push: core.Push, version: int) -> None:
        self._versions[push.target.role] = version
        for position, number in enumerate(push.updates, version - len(push.updates) + 1):
            delivery = self._updates.get(number)
            if delivery is None:
                continue
            if push.target.role == "replica":
                delivery.replica_version = version
            if push.id in delivery.missing_transfers:
                delivery.missing_transfers.discard(push.id)
                if not delivery.missing_transfers:
                    self.delays.append(position - delivery.update.base)
                    self._report_outcome(delivery, version)

    def _make_expect(self, transfer: Sendable, decided: Iterable[core.Transfer]) -> protocol.Expect:
        uses = sum(1 for other in decided if transfer.id in other.after and other.source == transfer.target)
        offset, elements = self.directory.shard_range(transfer.shard)
        expect = protocol.Expect(self._daemon_number(transfer.id), elements, uses, course=self._number)
        if isinstance(transfer, core.ModelTransfer):
            return replace(expect, content=protocol.Kind.MODEL, offset=offset, batch=transfer.batch)
        if isinstance(transfer, core.StateCopy):
            elements = self._state_elements(elements)
            return replace(expect, elements=elements, content=protocol.Kind.STATE, turn=transfer.resume)
        turn = -1 if transfer.turn is None else transfer.turn
        return replace(expect, turn=turn, count=len(transfer.updates), staleness=self._least_version(transfer.updates))

    def _make_send(self, transfer: Sendable, inputs: Sequence[int], now: float) -> protocol.Send:
        offset, elements = self.directory.shard_range(transfer.shard)
        send = protocol.Send(
            self._daemon_number(transfer.id),
            elements,
            self.directory.rails(transfer.target),
            relative_slices(transfer.schedule, now),
            list(map(self._daemon_number, inputs)),
            course=self._number,
        )
        if isinstance(transfer, core.ModelTransfer):
            first_element = 0 if transfer.source.role != "aggregator" else offset  # a server has only its own shard
            return replace(send, content=protocol.Kind.MODEL, offset=first_element, batch=transfer.batch)
        if isinstance(transfer, core.StateCopy):
            elements = self._state_elements(elements)
            return replace(send, elements=elements, content=protocol.Kind.STATE, turn=transfer.turn)
        updates = [self._updates[number] for number in transfer.updates]
        send = replace(
            send,
            offset=offset,
            next_hop=self._find_next_hop(transfer),
            count=len(updates),
            staleness=self._least_version(transfer.updates),
            norm=sum(each.update.norm * scale for each, scale in zip(updates, transfer.scales, strict=True)),
        )
        if transfer.source.role == "worker":
            send = replace(send, update=updates[0].number, scale=transfer.scales[0])
        return send

    def _state_elements(self, elements: int) -> int:
        """Return the number of float32 elements in a server's state: its shard, and as many for the last step with
        momentum."""
        return 2 * elements if self._has_momentum else elements

    def _find_next_hop(self, push: core.Push) -> int:
        """Return the rank to which an aggregator forwards the push, or -1."""
        forwards = (t for t in self._transfers.values() if push.id in t.after and t.source == push.target)
        first = next(forwards, None)
        return -1 if first is None else self.directory.rank(first.target)

    def _least_version(self, updates: Sequence[int]) -> int:
        return min(self._updates[number].update.base - position for position, number in enumerate(updates))


def relative_slices(schedule: core.Schedule, now: float) -> list[tuple[float, float, float]]:
    """Return the schedule as sent to daemons: seconds from ``now``. A schedule that should have begun already begins
    now.

    Rates are raised by the factor ``PROBE_FACTOR`` above the reserved ones, so that a faster link can be detected.
    """
    delay = max(0.0, now - schedule[0].start) if schedule else 0.0
    return [(p.start + delay - now, p.end + delay - now, PROBE_FACTOR * p.rate) for p in schedule]
