"""Translation of the core's decisions into messages for the daemons. It does no input or output, but keeps state.

Both ends of a transfer get a message, the receiver first. A transfer that waits for others at its own source, as an
aggregator's does, is ordered at once: the source does the waiting. A transfer that waits for others elsewhere is
ordered when these have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sparkdl_comm.fabric import protocol
from sparkdl_comm.fabric.bandwidth import PROBE_FACTOR
from sparkdl_comm.fabric.control import Directory
from sparkdl_comm.fabric.core import messages as core
from sparkdl_comm.fabric.core.messages import Node, Update

Orders = list[tuple[Node, protocol.Message]]
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


class Dispatcher:
    """Translator of the core's decisions into daemon messages, with the statistics of applied updates.

    - ``delays``: the delay of each applied update, in order. A delay counts the updates applied since the version that
      the update was computed from, itself included.
    - ``dropped``: the number of updates not applied, by reason.
    - ``lost_updates``: the updates that the servers had applied, and the replicas had not, when the servers were lost.
    """

    def __init__(self, directory: Directory, has_momentum: bool, session_number: int = 0, version: int = 0) -> None:
        """``session_number``: 0 for the servers' model, else the number of an all-reduce. ``version``: the model's
        initial version."""
        self._directory, self._has_momentum, self._session_number = directory, has_momentum, session_number
        self._updates: dict[int, _Delivery] = {}
        self._transfers: dict[int, Sendable] = {}
        self._held_orders: dict[int, _HeldOrder] = {}
        self._serving_role = "server"
        self._versions = {"server": version, "replica": version}
        self.delays: list[int] = []
        self.dropped: dict[str, int] = {}
        self.lost_updates = 0

    def add_update(self, update: Update, number: int) -> None:
        """Record an update that a worker has reported. ``number``: the worker's own number for it."""
        self._updates[update.id] = _Delivery(update, number)

    def dispatch(self, decisions: Sequence[core.Decision], now: float) -> Orders:
        """Return the messages that carry out decisions made at ``now``, in the order in which to send them."""
        transfers = [d for d in decisions if isinstance(d, Sendable)]
        self._transfers |= {d.id: d for d in transfers}
        for push in transfers:
            if isinstance(push, core.Push) and push.target.role == self._serving_role:
                for number in push.updates:
                    self._updates[number].missing_transfers.add(push.id)
        orders: Orders = [(d.target, self._make_expect(d, transfers)) for d in transfers]
        for decision in sorted(decisions, key=lambda d: not isinstance(d, core.SmallerSum)):
            orders += self._make_orders(decision, now)
        return orders

    def find_unfinished(self, source: Node) -> dict[Node, list[int]]:
        """Return the transfers of ``source`` that were ordered and have not ended, by target."""
        found: dict[Node, list[int]] = {}
        for transfer in self._transfers.values():
            if transfer.source == source and transfer.id not in self._held_orders:
                found.setdefault(transfer.target, []).append(self._daemon_number(transfer.id))
        return found

    def end_transfer(self, transfer: int, version: int, now: float) -> Orders:
        """Record that a transfer has ended, and return the orders that this allows.

        :param transfer: the core's number for the transfer.
        :param version: model version of the target after it has applied the transfer. Ignored unless the transfer is a
            push to a server or replica.
        """
        ended = self._transfers.pop(transfer, None)
        orders: Orders = []
        if isinstance(ended, core.Push) and ended.target.role in ("server", "replica"):
            orders += self._record_applied(ended, version)
        return orders + self._release(transfer, now)

    def take_over(self) -> None:
        """Let the replicas serve in place of the lost servers. Call this before dispatching the core's decisions on the
        loss."""
        self._serving_role = "replica"
        self.lost_updates = max(0, self._versions["server"] - self._versions["replica"])

    @property
    def serving_role(self) -> str:
        """Role of the nodes that serve the model: ``server`` or ``replica``."""
        return self._serving_role

    def find_target(self, transfer: int) -> Node | None:
        """Return the target of a transfer that has not ended, by the core's number; otherwise None."""
        found = self._transfers.get(transfer)
        return None if found is None else found.target

    @property
    def is_idle(self) -> bool:
        """True if no transfer is under way."""
        return not self._transfers

    # ---- private

    def _daemon_number(self, transfer: int) -> int:
        """Return the number by which daemons know a transfer of the core."""
        return protocol.pack_transfer_number(self._session_number, transfer)

    def _make_orders(self, decision: core.Decision, now: float) -> Orders:
        if isinstance(decision, Sendable):
            awaited = {
                other
                for other in decision.after
                if other in self._transfers and self._transfers[other].target != decision.source
            }
            inputs = [other for other in decision.after if self._has_target(other, decision.source)]
            if awaited:
                self._held_orders[decision.id] = _HeldOrder(awaited, inputs)
                return []
            return [(decision.source, self._make_send(decision, inputs, now))]
        if isinstance(decision, core.NewSchedule):
            return self._repace(decision, now)
        if isinstance(decision, core.SmallerSum):
            return self._regroup(decision)
        if isinstance(decision, core.NewTurn):
            return self._reorder(decision)
        if isinstance(decision, core.Cancellation):
            cancelled = self._transfers.pop(decision.transfer, None)
            if cancelled is None:
                return []
            self._held_orders.pop(decision.transfer, None)
            for delivery in self._updates.values():
                delivery.missing_transfers.discard(decision.transfer)
            cancel = protocol.Cancel(self._daemon_number(decision.transfer))
            return [(cancelled.target, cancel), (cancelled.source, cancel), *self._release(decision.transfer, now)]
        if isinstance(decision, core.SkippedTurn):
            return [(decision.target, protocol.Skip(decision.turn, self._session_number, decision.count))]
        return self._end_update(decision)

    def _end_update(self, decision: core.DroppedUpdate | core.ReleasedUpdate) -> Orders:
        delivery = self._updates.pop(decision.update)
        orders: Orders = []
        if isinstance(decision, core.DroppedUpdate):
            self.dropped[decision.reason] = self.dropped.get(decision.reason, 0) + 1
            orders.append(self._report_outcome(delivery, -1, decision.reason))
        elif not delivery.is_reported:  # the server was lost before it reported the update
            orders.append(
                self._report_outcome(
                    delivery, delivery.replica_version, "" if delivery.replica_version >= 0 else "lost"
                )
            )
        return [*orders, (Node("worker", decision.worker), protocol.Release(delivery.number, self._session_number))]

    def _release(self, transfer: int, now: float) -> Orders:
        """Return the orders of the transfers that waited only for this one."""
        orders: Orders = []
        for number, held in list(self._held_orders.items()):
            held.awaited.discard(transfer)
            if not held.awaited:
                del self._held_orders[number]
                ready_transfer = self._transfers[number]
                orders.append((ready_transfer.source, self._make_send(ready_transfer, held.inputs, now)))
        return orders

    def _record_applied(self, push: core.Push, version: int) -> Orders:
        self._versions[push.target.role] = version
        orders: Orders = []
        first = version - len(push.updates)
        for position, number in enumerate(push.updates):
            delivery = self._updates.get(number)
            if delivery is None:
                continue
            if push.target.role == "replica":
                delivery.replica_version = version
            if push.id in delivery.missing_transfers:
                delivery.missing_transfers.discard(push.id)
                if not delivery.missing_transfers:
                    self.delays.append(first + position + 1 - delivery.update.base)
                    orders.append(self._report_outcome(delivery, version))
        return orders

    def _report_outcome(self, delivery: _Delivery, version: int, why: str = "") -> tuple[Node, protocol.Message]:
        delivery.is_reported = True
        return Node("worker", delivery.update.worker), protocol.Outcome(
            delivery.number, version, why, self._session_number
        )

    def _make_expect(self, transfer: Sendable, decided: Iterable[core.Transfer]) -> protocol.Expect:
        uses = sum(1 for other in decided if transfer.id in other.after and other.source == transfer.target)
        offset, elements = self._directory.shard_range(transfer.shard)
        expect = protocol.Expect(self._daemon_number(transfer.id), elements, uses, course=self._session_number)
        if isinstance(transfer, core.ModelTransfer):
            return replace(expect, content=protocol.Kind.MODEL, offset=offset, batch=transfer.batch)
        if isinstance(transfer, core.StateCopy):
            return replace(
                expect, elements=self._state_elements(elements), content=protocol.Kind.STATE, turn=transfer.resume
            )
        turn = -1 if transfer.turn is None else transfer.turn
        return replace(expect, turn=turn, count=len(transfer.updates), staleness=self._least_version(transfer.updates))

    def _make_send(self, transfer: Sendable, inputs: Sequence[int], now: float) -> protocol.Send:
        offset, elements = self._directory.shard_range(transfer.shard)
        send = protocol.Send(
            self._daemon_number(transfer.id),
            elements,
            self._directory.rails(transfer.target),
            relative_slices(transfer.schedule, now),
            list(map(self._daemon_number, inputs)),
            course=self._session_number,
        )
        if isinstance(transfer, core.ModelTransfer):
            first_element = 0 if transfer.source.role != "aggregator" else offset  # a server has only its own shard
            return replace(send, content=protocol.Kind.MODEL, offset=first_element, batch=transfer.batch)
        if isinstance(transfer, core.StateCopy):
            return replace(
                send, elements=self._state_elements(elements), content=protocol.Kind.STATE, turn=transfer.turn
            )
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

    def _has_target(self, transfer: int, node: Node) -> bool:
        found = self._transfers.get(transfer)
        return found is not None and found.target == node

    def _find_next_hop(self, push: core.Push) -> int:
        """Return the rank to which an aggregator forwards the push, or -1."""
        forwards = (t for t in self._transfers.values() if push.id in t.after and t.source == push.target)
        first = next(forwards, None)
        return -1 if first is None else self._directory.rank(first.target)

    def _least_version(self, updates: Sequence[int]) -> int:
        return min(self._updates[number].update.base - position for position, number in enumerate(updates))

    def _repace(self, decision: core.NewSchedule, now: float) -> Orders:
        transfer = self._transfers.get(decision.transfer)
        if transfer is None:
            return []
        self._transfers[decision.transfer] = replace(transfer, schedule=decision.schedule)
        if decision.transfer in self._held_orders:
            return []  # its later order uses the new schedule
        return [
            (
                transfer.source,
                protocol.Repace(self._daemon_number(decision.transfer), relative_slices(decision.schedule, now)),
            )
        ]

    def _reorder(self, decision: core.NewTurn) -> Orders:
        transfer = self._transfers.get(decision.transfer)
        if not isinstance(transfer, core.Push):
            return []
        self._transfers[decision.transfer] = replace(transfer, turn=decision.turn)
        return [(transfer.target, protocol.Reorder(self._daemon_number(decision.transfer), decision.turn))]

    def _regroup(self, decision: core.SmallerSum) -> Orders:
        transfer = self._transfers.get(decision.transfer)
        if not isinstance(transfer, core.Push):
            return []
        regroup = protocol.Regroup(
            self._daemon_number(decision.transfer), len(decision.updates), self._least_version(decision.updates)
        )
        scale = dict(zip(transfer.updates, transfer.scales, strict=True))
        scales = tuple(scale[number] for number in decision.updates)
        self._transfers[decision.transfer] = replace(transfer, updates=decision.updates, scales=scales)
        return [(transfer.source, regroup)]


def relative_slices(schedule: core.Schedule, now: float) -> list[tuple[float, float, float]]:
    """Return the schedule as sent to daemons: seconds from ``now``. A schedule that should have begun already begins
    now.

    Rates are raised by the factor ``PROBE_FACTOR`` above the reserved ones, so that a faster link can be detected.
    """
    delay = max(0.0, now - schedule[0].start) if schedule else 0.0
    return [(p.start + delay - now, p.end + delay - now, PROBE_FACTOR * p.rate) for p in schedule]
