"""Updates at the scheduler: :class:`UpdateLedger` says where each one is, :class:`Divergence` how far apart they keep
the models of server and replica, from their norms alone.

With momentum m a step is w' = w + u + m (w - w_before). Here u is an update or an aggregator's sum. After k steps,
its own included, u has moved the parameters by c(k) u with c(k) = 1 + m + ... + m^(k-1). Set k to 0 on a side that
has not applied u yet.

Server and replica began with the same parameters. So they differ by the sum over all updates of (c(k_server) -
c(k_replica)) u. The norm of this sum is at most the sum of abs(c(k_server) - c(k_replica)) norm(u). That is the bound
of MLfabric, section 5.3. Squared and multiplied out, it has a Cauchy-Schwarz term for each pair of updates.

Server and replica may sum updates in different groups and so take different numbers of steps. The bound includes this
difference, which fades as steps follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.fabric.core.messages import DroppedUpdate, Reason, ReleasedUpdate, Update

#: An update that both sides have is forgotten once its remaining effect is at most this share of its norm.
_FADED_SHARE = 1e-12


@dataclass
class UpdateEntry:
    """Update that its worker keeps.

    - ``scale``: step size, once decided.
    - ``server_transfers``, ``replica_transfers``: open transfers to servers and replicas; None before the decision.
    - ``is_applied``: all servers have applied it.
    """

    update: Update
    scale: float = 1.0
    server_transfers: set[int] | None = None
    replica_transfers: set[int] | None = None
    is_applied: bool = False

    @property
    def norm(self) -> float:
        """L2 norm after multiplying by the step size."""
        return self.update.norm * self.scale


@dataclass
class UpdateLedger:
    """All updates that workers keep, from ready until every node that needs them has them, and each worker's progress.

    - ``workers``: number of workers.
    - ``has_replicas``: the servers have replicas.
    - ``by_id``: updates by id.
    - ``pending``: ids of undecided updates, oldest first.
    - ``punted``: ids of updates sent to the servers but not to the replicas, in the servers' order.
    """

    workers: int
    has_replicas: bool
    by_id: dict[int, UpdateEntry] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    punted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        #: Per worker: updates that were ready, and how many of them were applied or dropped.
        self.pushed = [0] * self.workers
        self.settled = [0] * self.workers
        self.lost_workers: set[int] = set()

    def add(self, update: Update) -> None:
        self.by_id[update.id] = UpdateEntry(update)
        self.pushed[update.worker] += 1
        self.pending.append(update.id)

    def drop(self, number: int, reason: Reason) -> DroppedUpdate:
        """Remove an update that is sent to nobody."""
        entry = self.by_id.pop(number)
        self.pending = [other for other in self.pending if other != number]
        self.settled[entry.update.worker] += not entry.is_applied
        return DroppedUpdate(number, entry.update.worker, reason)

    def serve(self, numbers: Iterable[int], deliveries: Iterable[int]) -> None:
        """Record that the transfers ``deliveries`` bring these updates to the servers."""
        transfers = set(deliveries)
        for number in numbers:
            self.by_id[number].server_transfers = set(transfers)
            self.pending.remove(number)
            if self.has_replicas:
                self.punted.append(number)

    def replicate(self, numbers: Iterable[int], deliveries: Iterable[int]) -> None:
        """Record that the transfers ``deliveries`` bring these updates to the replicas."""
        transfers = set(deliveries)
        for number in numbers:
            self.by_id[number].replica_transfers = set(transfers)
            self.punted.remove(number)

    def record_arrival(self, transfer: int, numbers: Iterable[int]) -> list[ReleasedUpdate]:
        """Record that a transfer with these updates to a server or replica has ended."""
        released = []
        for number in list(numbers):
            entry = self.by_id.get(number)
            if entry is None:
                continue
            if entry.server_transfers and transfer in entry.server_transfers:
                entry.server_transfers.discard(transfer)
                self._count_if_applied(entry)
            if entry.replica_transfers:
                entry.replica_transfers.discard(transfer)
            released += self.release(number)
        return released

    def release(self, number: int) -> list[ReleasedUpdate]:
        """Forget the update if every node that needs it has it."""
        entry = self.by_id[number]
        if entry.server_transfers != set() or (self.has_replicas and entry.replica_transfers != set()):
            return []
        del self.by_id[number]
        return [ReleasedUpdate(number, entry.update.worker)]

    def undo_serving(self, delivery: int, numbers: Iterable[int], servers: int) -> list[ReleasedUpdate]:
        """Record that a transfer to a server was cancelled.

        Its updates become pending again, with two exceptions: another server has them, or their transfer to the
        replicas was decided. Then this server goes without them, so that no node applies them twice.
        """
        released = []
        for number in numbers:
            entry = self.by_id.get(number)
            if entry is None or entry.server_transfers is None:
                continue
            if len(entry.server_transfers) < servers or entry.replica_transfers is not None:
                released += self.record_arrival(delivery, [number])
                continue
            entry.server_transfers = None
            self.punted = [other for other in self.punted if other != number]
            self.pending.append(number)
        return released

    def record_copies(self, copies: Iterable[int]) -> None:
        """Record that the transfers ``copies`` bring the replicas everything that the servers have or will have."""
        brought = set(copies)
        self.punted = []
        for entry in self.by_id.values():
            if entry.server_transfers is not None and entry.replica_transfers != set():
                entry.replica_transfers = set(brought)

    def undo_copy(self, copy: int) -> None:
        """Record that this copy does not reach its replica. Its updates count as punted again."""
        for number, entry in self.by_id.items():
            if entry.replica_transfers and copy in entry.replica_transfers:
                entry.replica_transfers = None
                self.punted.append(number)

    def lose_replicas(self) -> list[ReleasedUpdate]:
        """Record that the servers have no replicas any more."""
        self.has_replicas, self.punted = False, []
        return [released for number in list(self.by_id) for released in self.release(number)]

    def take_over(self) -> list[DroppedUpdate | ReleasedUpdate]:
        """Make the replicas the servers. Drop updates sent to the servers alone. Count transfers to the replicas as
        transfers to the servers."""
        decided: list[DroppedUpdate | ReleasedUpdate] = [self.drop(number, "lost") for number in self.punted]
        self.punted = []
        self.has_replicas = False
        for number, entry in list(self.by_id.items()):
            if entry.replica_transfers is not None:
                entry.server_transfers, entry.replica_transfers = entry.replica_transfers, None
                self._count_if_applied(entry)
                decided += self.release(number)
        return decided

    def remove_worker(self, worker: int) -> bool:
        """Forget a worker's updates. Return whether the servers have or get any that the replicas will not."""
        self.lost_workers.add(worker)
        mine = {number for number, entry in self.by_id.items() if entry.update.worker == worker}
        alone = not mine.isdisjoint(self.punted)
        for number in mine:
            del self.by_id[number]
        self.pending = [number for number in self.pending if number not in mine]
        self.punted = [number for number in self.punted if number not in mine]
        return alone

    def count_slowest(self) -> int:
        """Return the minimum number of applied or dropped updates among the remaining workers."""
        return min((count for worker, count in enumerate(self.settled) if worker not in self.lost_workers), default=0)

    def get_remaining_share(self, workers: int) -> float:
        """Return the share of the remaining workers that is left after taking ``workers`` of them away."""
        left = self.workers - len(self.lost_workers)
        return max(0.0, 1 - workers / left) if left else 0.0

    def _count_if_applied(self, entry: UpdateEntry) -> None:
        """Count the update once all servers have it."""
        if not entry.server_transfers and not entry.is_applied:
            entry.is_applied = True
            self.settled[entry.update.worker] += 1


class Divergence:
    """Record of the optimizer step in which server and replica applied each update."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._norms: NDArray[np.float64] = np.empty(0)
        #: Step in which each side (server, replica) applied each update, from 0; -1 if it has not.
        self._applied: NDArray[np.int64] = np.empty((2, 0), dtype=np.int64)
        self._ids: list[int] = []
        self._steps = [0, 0]

    def copy(self) -> Divergence:
        made = Divergence(self._momentum)
        made._norms, made._applied = self._norms, self._applied.copy()
        made._ids, made._steps = list(self._ids), list(self._steps)
        return made

    def serve(self, updates: Sequence[int], norms: Sequence[float]) -> None:
        """Record that the server applies the sum of these updates in one step. ``norms``: after multiplying by the
        step size."""
        self._ids += updates
        self._norms = np.append(self._norms, norms)
        new = np.full((2, len(updates)), -1, dtype=np.int64)
        new[0] = self._steps[0]
        self._applied = np.append(self._applied, new, axis=1)
        self._steps[0] += 1

    def replicate(self, updates: Sequence[int]) -> None:
        """Record that the replica applies the sum of these updates in one step. The server must have applied all of
        them."""
        at = np.isin(self._ids, updates)
        self._applied[1, at] = self._steps[1]
        self._steps[1] += 1

    def bound(self, behind: int = 0) -> float:
        """Return an upper bound on the L2 norm of the parameters' difference.

        ``behind``: number of the server's last steps to leave out.
        """
        if not self._ids:
            return 0.0
        parts = self._compute_coefficients(behind)
        return float(np.abs(parts[0] - parts[1]) @ self._norms)

    def prune(self) -> None:
        """Forget updates whose effect on the difference has faded."""
        steps = np.where(self._applied < 0, 0, np.array(self._steps)[:, None] - self._applied)
        self._keep((self._momentum ** steps.min(axis=0)) > _FADED_SHARE)

    def _compute_coefficients(self, behind: int) -> NDArray[np.float64]:
        """Return c for each side and update, shape [2, updates]."""
        taken = np.array([self._steps[0] - behind, self._steps[1]])[:, None]
        steps = np.where(self._applied < 0, 0, np.maximum(taken - self._applied, 0))
        return (1 - self._momentum**steps) / (1 - self._momentum)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self._ids = [update for update, keep in zip(self._ids, kept, strict=True) if keep]
        self._norms, self._applied = self._norms[kept], self._applied[:, kept]
