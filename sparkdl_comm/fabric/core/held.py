"""The updates that workers hold, from when they are ready until everybody has them, and how far each worker is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkdl_comm.fabric.core.decisions import Dropped, Reason, Released
from sparkdl_comm.fabric.core.events import Update


@dataclass
class Holding:
    """``scale``: the step size that the update is multiplied by, once it is decided. ``serving``, ``replicating``: the
    transfers to servers and replicas that have to end, None if not decided on. ``applied``: the servers have it."""

    update: Update
    scale: float = 1.0
    serving: set[int] | None = None
    replicating: set[int] | None = None
    applied: bool = False

    @property
    def norm(self) -> float:
        """Of what is applied."""
        return self.update.norm * self.scale


@dataclass
class Held:
    """All of them by id. ``pending``: those that no decision was made on, oldest first; ``punted``: those that were sent to
    the servers but not to the replicas, in the servers' order."""

    workers: int
    replicated: bool
    by_id: dict[int, Holding] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    punted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        #: How many updates of each worker were ready, and how many of these were applied or dropped.
        self.pushed = [0] * self.workers
        self.settled = [0] * self.workers
        self.lost: set[int] = set()

    def add(self, update: Update) -> None:
        self.by_id[update.id] = Holding(update)
        self.pushed[update.worker] += 1
        self.pending.append(update.id)

    def drop(self, number: int, reason: Reason) -> Dropped:
        """The update goes nowhere."""
        holding = self.by_id.pop(number)
        self.pending = [other for other in self.pending if other != number]
        self.settled[holding.update.worker] += not holding.applied
        return Dropped(number, holding.update.worker, reason)

    def serve(self, numbers: Iterable[int], deliveries: Iterable[int]) -> None:
        """These transfers bring the updates to the servers."""
        served = set(deliveries)
        for number in numbers:
            self.by_id[number].serving = set(served)
            self.pending.remove(number)
            if self.replicated:
                self.punted.append(number)

    def replicate(self, numbers: Iterable[int], deliveries: Iterable[int]) -> None:
        """These transfers bring the updates to the replicas."""
        replicated = set(deliveries)
        for number in numbers:
            self.by_id[number].replicating = set(replicated)
            self.punted.remove(number)

    def arrived(self, transfer: int, numbers: Iterable[int]) -> list[Released]:
        """A transfer to a server or a replica that carried these updates, or some of them, has ended."""
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
        """Forgets the update if everybody has it."""
        holding = self.by_id[number]
        if holding.serving != set() or (self.replicated and holding.replicating != set()):
            return []
        del self.by_id[number]
        return [Released(number, holding.update.worker)]

    def unserve(self, delivery: int, numbers: Iterable[int], servers: int) -> list[Released]:
        """A transfer to a server was cancelled. The updates wait for the next batch again, unless another server has them, or
        their replicas have or may get them: then that server has to do without, so that nobody applies them twice."""
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
        """These transfers bring the replicas all that the servers have or will have."""
        brought = set(copies)
        self.punted = []
        for holding in self.by_id.values():
            if holding.serving is not None and holding.replicating != set():
                holding.replicating = set(brought)

    def uncopy(self, copy: int) -> None:
        """The replicas do not get what this transfer was to bring."""
        for number, holding in self.by_id.items():
            if holding.replicating and copy in holding.replicating:
                holding.replicating = None
                self.punted.append(number)

    def lose_replicas(self) -> list[Released]:
        """The servers have no replicas any more."""
        self.replicated, self.punted = False, []
        return [released for number in list(self.by_id) for released in self.release(number)]

    def take_over(self) -> list[Dropped | Released]:
        """The replicas become the servers. What was sent to the servers alone is lost; what the replicas have is applied."""
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
        """Forgets a worker's updates. Whether servers have or will have any that the replicas will not."""
        self.lost.add(worker)
        mine = {number for number, holding in self.by_id.items() if holding.update.worker == worker}
        alone = not mine.isdisjoint(self.punted)
        for number in mine:
            del self.by_id[number]
        self.pending = [number for number in self.pending if number not in mine]
        self.punted = [number for number in self.punted if number not in mine]
        return alone

    def slowest(self) -> int:
        """The fewest updates that one of the workers that are left has had applied or dropped."""
        return min((count for worker, count in enumerate(self.settled) if worker not in self.lost), default=0)

    def share_without(self, workers: int) -> float:
        """Of the workers that are left, the share that is not among so many."""
        left = self.workers - len(self.lost)
        return max(0.0, 1 - workers / left) if left else 0.0

    def _settle(self, holding: Holding) -> None:
        """Counts the update, once, when all servers have it."""
        if not holding.serving and not holding.applied:
            holding.applied = True
            self.settled[holding.update.worker] += 1
