"""Updates that workers keep, from ready until every node that needs them has them, and each worker's progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkdl_comm.fabric.core.decisions import Dropped, Reason, Released
from sparkdl_comm.fabric.core.events import Update


@dataclass
class Holding:
    """Update that its worker keeps.

    - ``scale``: step size, once decided.
    - ``serving``, ``replicating``: transfers to servers and to replicas that have to end; None before the decision.
    - ``applied``: all servers have applied it.
    """

    update: Update
    scale: float = 1.0
    serving: set[int] | None = None
    replicating: set[int] | None = None
    applied: bool = False

    @property
    def norm(self) -> float:
        """L2 norm after multiplying by the step size."""
        return self.update.norm * self.scale


@dataclass
class Held:
    """All updates that workers keep.

    - ``workers``: number of workers.
    - ``replicated``: the servers have replicas.
    - ``by_id``: updates by id.
    - ``pending``: ids of undecided updates, oldest first.
    - ``punted``: ids of updates sent to the servers but not to the replicas, in the servers' order.
    """

    workers: int
    replicated: bool
    by_id: dict[int, Holding] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    punted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        #: Per worker: updates that were ready, and how many of them were applied or dropped.
        self.pushed = [0] * self.workers
        self.settled = [0] * self.workers
        self.lost: set[int] = set()

    def add(self, update: Update) -> None:
        self.by_id[update.id] = Holding(update)
        self.pushed[update.worker] += 1
        self.pending.append(update.id)

    def drop(self, number: int, reason: Reason) -> Dropped:
        """Remove an update that is sent to nobody."""
        holding = self.by_id.pop(number)
        self.pending = [other for other in self.pending if other != number]
        self.settled[holding.update.worker] += not holding.applied
        return Dropped(number, holding.update.worker, reason)

    def serve(self, numbers: Iterable[int], deliveries: Iterable[int]) -> None:
        """Record that the transfers ``deliveries`` bring these updates to the servers."""
        served = set(deliveries)
        for number in numbers:
            self.by_id[number].serving = set(served)
            self.pending.remove(number)
            if self.replicated:
                self.punted.append(number)

    def replicate(self, numbers: Iterable[int], deliveries: Iterable[int]) -> None:
        """Record that the transfers ``deliveries`` bring these updates to the replicas."""
        replicated = set(deliveries)
        for number in numbers:
            self.by_id[number].replicating = set(replicated)
            self.punted.remove(number)

    def arrived(self, transfer: int, numbers: Iterable[int]) -> list[Released]:
        """Record that a transfer with these updates to a server or replica has ended."""
        released = []
        for number in list(numbers):
            holding = self.by_id.get(number)
            if holding is None:
                continue
            if holding.serving and transfer in holding.serving:
                holding.serving.discard(transfer)
                self._settle(holding)
            if holding.replicating:
                holding.replicating.discard(transfer)
            released += self.release(number)
        return released

    def release(self, number: int) -> list[Released]:
        """Forget the update if every node that needs it has it."""
        holding = self.by_id[number]
        if holding.serving != set() or (self.replicated and holding.replicating != set()):
            return []
        del self.by_id[number]
        return [Released(number, holding.update.worker)]

    def unserve(self, delivery: int, numbers: Iterable[int], servers: int) -> list[Released]:
        """Record that a transfer to a server was cancelled.

        Its updates become pending again, with two exceptions: another server has them, or their transfer to the
        replicas was decided. Then this server goes without them, so that no node applies them twice.
        """
        released = []
        for number in numbers:
            holding = self.by_id.get(number)
            if holding is None or holding.serving is None:
                continue
            if len(holding.serving) < servers or holding.replicating is not None:
                released += self.arrived(delivery, [number])
                continue
            holding.serving = None
            self.punted = [other for other in self.punted if other != number]
            self.pending.append(number)
        return released

    def copy(self, copies: Iterable[int]) -> None:
        """Record that the transfers ``copies`` bring the replicas everything that the servers have or will have."""
        brought = set(copies)
        self.punted = []
        for holding in self.by_id.values():
            if holding.serving is not None and holding.replicating != set():
                holding.replicating = set(brought)

    def uncopy(self, copy: int) -> None:
        """Record that this copy does not reach its replica. Its updates count as punted again."""
        for number, holding in self.by_id.items():
            if holding.replicating and copy in holding.replicating:
                holding.replicating = None
                self.punted.append(number)

    def lose_replicas(self) -> list[Released]:
        """Record that the servers have no replicas any more."""
        self.replicated, self.punted = False, []
        return [released for number in list(self.by_id) for released in self.release(number)]

    def take_over(self) -> list[Dropped | Released]:
        """Make the replicas the servers. Drop updates sent to the servers alone. Count transfers to the replicas as
        transfers to the servers."""
        decided: list[Dropped | Released] = []
        for number in self.punted:
            holding = self.by_id.pop(number)
            self.settled[holding.update.worker] += not holding.applied
            decided.append(Dropped(number, holding.update.worker, "lost"))
        self.punted = []
        self.replicated = False
        for number, holding in list(self.by_id.items()):
            if holding.replicating is not None:
                holding.serving, holding.replicating = holding.replicating, None
                self._settle(holding)
                decided += self.release(number)
        return decided

    def lose(self, worker: int) -> bool:
        """Forget a worker's updates. Return whether the servers have or get any that the replicas will not."""
        self.lost.add(worker)
        mine = {number for number, holding in self.by_id.items() if holding.update.worker == worker}
        alone = not mine.isdisjoint(self.punted)
        for number in mine:
            del self.by_id[number]
        self.pending = [number for number in self.pending if number not in mine]
        self.punted = [number for number in self.punted if number not in mine]
        return alone

    def slowest(self) -> int:
        """Return the least number of applied or dropped updates among the remaining workers."""
        return min((count for worker, count in enumerate(self.settled) if worker not in self.lost), default=0)

    def share_without(self, workers: int) -> float:
        """Return the share of the remaining workers that is left after taking ``workers`` of them away."""
        left = self.workers - len(self.lost)
        return max(0.0, 1 - workers / left) if left else 0.0

    def _settle(self, holding: Holding) -> None:
        """Count the update once all servers have it."""
        if not holding.serving and not holding.applied:
            holding.applied = True
            self.settled[holding.update.worker] += 1
