"""A cluster that does what the fabric's scheduler says, each transfer as fast as it is scheduled, and remembers all of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Cancellation,
    Decision,
    DroppedUpdate,
    Event,
    ModelTransfer,
    NewSchedule,
    NewTurn,
    Node,
    NodeLost,
    Push,
    ReleasedUpdate,
    Roles,
    Schedule,
    SkippedTurn,
    SmallerSum,
    StateCopy,
    Transfer,
    TransferEnded,
    Update,
)
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.params import FabricParams

SERVER = Node("server", 0)


@dataclass
class Cluster:
    """``applied``: the pushes that are in the model of each server or replica, in their order, with the time. ``counted``: of
    each, updates by which its version has risen though it has not applied them. ``too_late``: whether a transfer that gets
    another turn, and could have been applied, was so before the server heard of that."""

    roles: Roles
    params: FabricParams
    rates: list[tuple[float, float]]
    now: float = 0.0
    too_late: Callable[[], bool] = lambda: False
    lead_seconds: float = 0.1
    decisions: list[Decision] = field(default_factory=list)
    applied: dict[Node, list[tuple[float, Push]]] = field(default_factory=dict)
    counted: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.roles, self.params, self.lead_seconds)
        self._underway: dict[int, tuple[Transfer, Schedule, float]] = {}
        self._ended: dict[int, float] = {}
        self._arrived: dict[Node, dict[int, Push]] = {}
        self._turns: dict[Node, int] = {}
        self._skipped: dict[tuple[Node, int], int] = {}
        self._copies: dict[Node, StateCopy] = {}
        for host, pair in enumerate(self.rates[: self.roles.hosts]):
            self.observe(BandwidthReported(host, *pair))

    def observe(self, event: Event) -> list[Decision]:
        return self._obey(self.scheduler.observe(event, self.now))

    def ready(self, update: Update) -> list[Decision]:
        return self.observe(update)

    def lose(self, node: Node) -> list[Decision]:
        replicas = (Node("replica", shard) for shard in range(len(self.roles.replicas)))
        return self.observe(NodeLost(node, tuple(map(self.version, replicas))))

    def decide(self) -> list[Decision]:
        return self._obey(self.scheduler.decide(self.now))

    def advance(self, until: float = math.inf) -> None:
        """Lets all transfers end that do before ``until``."""
        while self._underway:
            time, number = min((self._end(number), number) for number in self._underway)
            if time > until:
                break
            self.now = max(self.now, time)
            transfer, _, _ = self._underway.pop(number)
            self._ended[number] = self.now
            if isinstance(transfer, Push) and transfer.turn is not None:
                self._arrived.setdefault(transfer.target, {})[transfer.turn] = transfer
                self._apply(transfer.target)
            elif isinstance(transfer, StateCopy):
                self._load(transfer)
            else:
                self.observe(TransferEnded(number))
        if until < math.inf:
            self.now = max(self.now, until)

    def version(self, node: Node = SERVER) -> int:
        """Return the version of a node's part of the model."""
        return len(self.order(node)) + self.counted.get(node, 0)

    def order(self, node: Node) -> list[int]:
        """The updates that a node has applied."""
        return [number for _, push in self.applied.get(node, []) for number in push.updates]

    def made(self, kind: type) -> list[Decision]:
        return [decision for decision in self.decisions if isinstance(decision, kind)]

    def _end(self, number: int) -> float:
        transfer, schedule, since = self._underway[number]
        before = [math.inf if other in self._underway else self._ended.get(other, since) for other in transfer.after]
        planned = schedule[-1].end if schedule else since
        return max([planned, *before])

    def _load(self, copy: StateCopy) -> None:
        server = self.applied.get(copy.source, [])
        self.applied[copy.target] = [(time, push) for time, push in server if push.turn < copy.turn]
        self.counted[copy.target] = self.counted.get(copy.source, 0)
        self._turns[copy.target] = copy.resume
        del self._copies[copy.target]
        self.observe(TransferEnded(copy.id))
        self._apply(copy.target)

    def _apply(self, node: Node) -> None:
        if node in self._copies:
            return
        turn = self._turns.get(node, 0)
        while turn in self._arrived.get(node, {}) or (node, turn) in self._skipped:
            if push := self._arrived.get(node, {}).pop(turn, None):
                self.applied.setdefault(node, []).append((self.now, push))
                self.observe(TransferEnded(push.id))
            else:
                self.counted[node] = self.counted.get(node, 0) + self._skipped[node, turn]
            turn += 1
            self._turns[node] = turn

    def _reorder(self, number: int, turn: int) -> None:
        if number in self._underway:
            transfer, schedule, since = self._underway[number]
            assert isinstance(transfer, Push)
            if transfer.turn == self._turns.get(transfer.target, 0) and self.too_late():
                del self._underway[number]
                self._ended[number] = self.now
                self._arrived.setdefault(transfer.target, {})[transfer.turn] = transfer
                self._skipped[transfer.target, turn] = 0
                self._apply(transfer.target)
                return
            self._underway[number] = replace(transfer, turn=turn), schedule, since
            return
        [(node, old)] = [
            (node, old) for node, pushes in self._arrived.items() for old, push in pushes.items() if push.id == number
        ]
        self._arrived[node][turn] = self._arrived[node].pop(old)

    def _obey(self, decisions: list[Decision]) -> list[Decision]:
        self.decisions += decisions
        for decision in decisions:
            match decision:
                case Transfer(id=number):
                    assert all(other in self._underway or other in self._ended for other in decision.after)
                    self._underway[number] = decision, decision.schedule, self.now
                    if isinstance(decision, StateCopy):
                        self._copies[decision.target] = decision
                case NewSchedule(number, schedule) if number in self._underway:
                    transfer, _, _ = self._underway[number]
                    self._underway[number] = transfer, schedule, self.now
                case SmallerSum(number, updates) if number in self._underway:
                    transfer, schedule, since = self._underway[number]
                    assert isinstance(transfer, Push)
                    kept = tuple(
                        scale for one, scale in zip(transfer.updates, transfer.scales, strict=True) if one in updates
                    )
                    self._underway[number] = replace(transfer, updates=updates, scales=kept), schedule, since
                case Cancellation(number):
                    self._underway.pop(number, None)
                    self._ended[number] = self.now
                    for node, pushes in self._arrived.items():
                        self._arrived[node] = {turn: push for turn, push in pushes.items() if push.id != number}
                    for node in [node for node, copy in self._copies.items() if copy.id == number]:
                        del self._copies[node]
                        self._apply(node)
                case NewTurn(number, turn):
                    self._reorder(number, turn)
                case SkippedTurn(target, turn, count):
                    self._skipped[target, turn] = count
                    self._apply(target)
                case ModelTransfer() | DroppedUpdate() | ReleasedUpdate():
                    pass
        return decisions
