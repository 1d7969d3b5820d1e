"""Replication: choose the transfers to the replica and the server's waits, so that the two never differ by more than
allowed.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 5.3:
the replica's transfers are planned on the network left over by the server's, with aggregators of its own, in the
server's order. Transfers that are complete when the batch is complete at the server are sent with it. The others are
punted: they are planned again with the next batch and may be summed with it. If the bound would be exceeded, the
batch's last transfer to the server is delayed until enough has arrived at the replica.

Differences from the paper:

- The paper checks the bound when the batch is complete. Here every transfer that either side applies has to keep it.
  If an earlier transfer would exceed it, the batch ends with that one, and the rest waits for the next batch. The
  replica applies nothing that the server has not.
- In the paper the replica shares the server's link, so that little of a batch reaches it in time, and punted updates
  are summed. A replica on a host of its own would get all of a batch, in small sums, for any bound. So here, if there
  is a bound, a batch is punted as a whole where that keeps the bound. ``catch_up.py`` sends punted updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.fabric.core.aggregate import Group, aggregate, deliver, reserve
from sparkdl_comm.fabric.core.bandwidth import Residual
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.order import Job


@dataclass(frozen=True)
class Sides:
    """Hosts of the servers, of the replicas, and of each side's aggregators in the order of use."""

    servers: Sequence[int]
    aggregators: Sequence[int]
    replicas: Sequence[int]
    replica_aggregators: Sequence[int]


@dataclass(frozen=True)
class Bounded:
    """Part of a batch that keeps the bound.

    - ``served``: the server's groups, a prefix of the planned ones.
    - ``replicated``: the replica's groups.
    - ``awaited``: number of ``replicated`` that must have arrived before the last of ``served`` starts.
    - ``left``: residual network after all groups.
    - ``follows``: ``replicated`` may start only when the servers have what was under way to them before.
    """

    served: list[Group]
    replicated: list[Group]
    awaited: int
    left: Residual
    follows: bool = False


def bounded(
    jobs: Sequence[Job],
    updates: Sequence[tuple[int, float]],
    punted: Sequence[int],
    groups: Sequence[Group],
    network: Residual,
    sides: Sides,
    divergence: Divergence,
    limit: float,
    now: float,
    busy: float = -math.inf,
    coming: Sequence[Divergence] = (),
    under_way: int = 0,
    servers_busy: float = -math.inf,
) -> Bounded:
    """Return how much of a batch can be served, and with which transfers to the replica.

    Nothing is served if the first group would exceed the limit even with a replica that has everything before it.
    While the replica catches up, nothing more is sent to it, so the first group must keep the limit without that.

    :param jobs: updates of the batch, and updates punted from earlier batches.
    :param updates: id of each job, and its norm after multiplying by the step size.
    :param punted: indices of the jobs that only the replica needs, in the server's order.
    :param groups: groups planned for the server.
    :param network: residual network before these groups.
    :param divergence: state after all earlier decisions. It is not changed.
    :param limit: largest value that the bound may have.
    :param busy: time until which earlier groups keep the replicas busy, seconds.
    :param coming: divergence after each transfer with which the replicas catch up. These do not count in
        ``divergence``. Nobody waits for them, so the limit must hold for any time of their arrival.
    :param under_way: steps of the servers that ``divergence`` includes and that may still come after the replicas'
        first ones, until ``servers_busy``.
    """
    plan = _Plan(jobs, updates, punted, network, sides, divergence, limit, now, busy)
    found = _found(plan, groups, coming)
    if plan.keeps_limit(found.replicated, under_way):
        return found
    later = max(now, servers_busy)
    return replace(_found(replace(plan, now=later, busy=max(busy, later)), groups, coming), follows=True)


def _found(plan: _Plan, groups: Sequence[Group], coming: Sequence[Divergence]) -> Bounded:
    divergence, limit = plan.divergence, plan.limit
    served = list(groups)
    if served and limit < math.inf:
        alone = min((plan.without_replicas(served, state) for state in (divergence, *coming)), key=_count)
        if coming or len(alone.served) == len(served):
            return alone
    while served:
        found = plan.all_at_once(served)
        if isinstance(found, Bounded):
            return found
        served = served[: found + 1]
        if late := plan.last_delayed(served):
            return late
        served.pop()
    return plan.nothing()


def _count(bounded: Bounded) -> int:
    return len(bounded.served)


@dataclass(frozen=True)
class _Plan:
    jobs: Sequence[Job]
    updates: Sequence[tuple[int, float]]
    punted: Sequence[int]
    network: Residual
    sides: Sides
    divergence: Divergence
    limit: float
    now: float
    busy: float

    def without_replicas(self, served: list[Group], divergence: Divergence) -> Bounded:
        """Return the groups that keep the limit if the replica gets nothing beyond ``divergence``."""
        walk = _Walk(replace(self, divergence=divergence), served, [])
        while walk.serve():
            pass
        return Bounded(served[: walk.served], [], 0, self._left(served[: walk.served]))

    def all_at_once(self, served: list[Group]) -> Bounded | int:
        """Return the plan without delays, or the index of the first group that would exceed the limit."""
        replicas = self._replicas(served, self._left(served))
        while True:
            walk = _Walk(self, served, replicas)
            while walk.serve():
                pass
            if walk.replica_exceeds:
                replicas = replicas[: walk.replicated]
            elif walk.served < len(served):
                return walk.served
            else:
                replicated = replicas[: walk.replicated]
                return Bounded(served, replicated, 0, self._left(served, replicated))

    def last_delayed(self, served: list[Group]) -> Bounded | None:
        """Return the plan whose last group waits until it keeps the limit. None if no wait is enough."""
        before, last = served[:-1], served[-1]
        left = self._left(before)
        reserve(last, self.jobs, left, self.sides.servers, self.sides.aggregators, deliveries=False)
        replicas = self._replicas(before, left)
        walk = _Walk(self, [*before, last], replicas)
        while walk.served < len(before):
            if not walk.serve():
                return None
        while not walk.allows_next():
            if not walk.replicate():
                return None
        replicated = replicas[: walk.replicated]
        left = self._left(before, replicated)
        reserve(last, self.jobs, left, self.sides.servers, self.sides.aggregators, deliveries=False)
        late = replace(last, ready=max([last.ready, *(group.done for group in replicated)]))
        after = max([late.ready, *(group.done for group in before)])
        deliver(late, self.jobs, left, self.sides.servers, self.sides.aggregators, after)
        return Bounded([*before, late], replicated, len(replicated), left)

    def keeps_limit(self, replicated: Sequence[Group], under_way: int) -> bool:
        """Return whether the replicas keep the limit, however many of the steps under way the servers have taken
        before."""
        if self.limit == math.inf:
            return True
        state = self.divergence.copy()
        for group in replicated:
            if not set(self.punted).issuperset(group.members):
                break  # the servers apply new updates after those under way
            state.replicate([self.updates[index][0] for index in group.members])
            if any(state.bound(behind) > self.limit for behind in range(1, under_way + 1)):
                return False
        return True

    def nothing(self) -> Bounded:
        """Return a plan without transfers."""
        return Bounded([], [], 0, self.network.copy())

    def _left(self, served: Sequence[Group], replicated: Sequence[Group] = ()) -> Residual:
        left = self.network.copy()
        for group in served:
            reserve(group, self.jobs, left, self.sides.servers, self.sides.aggregators)
        for group in replicated:
            reserve(group, self.jobs, left, self.sides.replicas, self.sides.replica_aggregators)
        return left

    def _replicas(self, served: Sequence[Group], left: Residual) -> list[Group]:
        queue = [*self.punted, *(index for group in served for index in group.members)]
        sides = self.sides
        return aggregate(self.jobs, queue, left.copy(), sides.replicas, sides.replica_aggregators, self.now, self.busy)


class _Walk:
    """Simulation of the steps of server and replica in order, as long as each keeps the limit."""

    def __init__(self, plan: _Plan, served: Sequence[Group], replicas: Sequence[Group]) -> None:
        self._plan, self._groups, self._replicas = plan, served, replicas
        self._state = plan.divergence.copy()
        self._at_server = set(plan.punted)
        self.served = self.replicated = 0
        #: A step of the replica exceeded the limit.
        self.replica_exceeds = False

    def serve(self) -> bool:
        """Take the replica's steps that come before the server's next step, then that step. After the last one, take
        the rest in time.

        Return False if there is no next step or one would exceed the limit.
        """
        until = self._groups[min(self.served, len(self._groups) - 1)].done
        while self._replica_can(until):
            if not self.replicate():
                self.replica_exceeds = True
                return False
        if self.served == len(self._groups) or not self.allows_next():
            return False
        self._serve(self._state)
        self._at_server.update(self._groups[self.served].members)
        self.served += 1
        return True

    def allows_next(self) -> bool:
        """Return whether the server's next step would keep the limit now."""
        trial = self._state.copy()
        self._serve(trial)
        return trial.bound() <= self._plan.limit

    def replicate(self) -> bool:
        """Take the replica's next step. Return False if there is none, or if it would exceed the limit."""
        if self.replicated == len(self._replicas):
            return False
        trial = self._state.copy()
        trial.replicate([self._plan.updates[index][0] for index in self._replicas[self.replicated].members])
        if trial.bound() > self._plan.limit:
            return False
        self._state = trial
        self.replicated += 1
        return True

    def _replica_can(self, until: float) -> bool:
        if self.replicated == len(self._replicas):
            return False
        group = self._replicas[self.replicated]
        return group.done <= until and self._at_server.issuperset(group.members)

    def _serve(self, state: Divergence) -> None:
        members = self._groups[self.served].members
        state.serve(
            [self._plan.updates[index][0] for index in members], [self._plan.updates[index][1] for index in members]
        )
