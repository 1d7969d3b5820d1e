"""What is sent to the replica, and what the server has to wait for, so that the two never differ by more than they may.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 5.3: the
replica's transfers are planned on the network that the server's leave, with aggregators of its own, in the server's order.
Those that are complete when the batch is complete at the server are sent with it; the others are punted, that is, planned
anew with the next batch, with which they may be summed. If the bound would be exceeded, the batch's last transfer to the
server is delayed until enough has arrived at the replica.

The paper looks at the bound when the batch is complete. Here every transfer that is applied on either side has to keep it:
where one before the last would not, the batch ends with that one, and what follows waits for the next batch. The replica
applies nothing that the server has not.

In the paper the replica shares the server's link, so that little of a batch reaches it in time, and what is punted is summed;
on a host of its own it would get all of it, in small sums, whatever the bound is. So here, if there is a bound, a batch is
punted as a whole where that keeps it. ``catch_up.py`` says when what was punted is sent.
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
    """The hosts of the servers and the replicas, and of the aggregators of each, in the order in which they are to be used."""

    servers: Sequence[int]
    aggregators: Sequence[int]
    replicas: Sequence[int]
    replica_aggregators: Sequence[int]


@dataclass(frozen=True)
class Bounded:
    """``served``: the server's groups of this batch, a prefix of those planned. ``replicated``: the replica's. ``awaited``:
    the last of ``served`` may start when this many of ``replicated`` have arrived. ``left``: the network after all of
    them. ``follows``: ``replicated`` may start when the servers have what was under way to them before."""

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
    """How much of a batch can be served, and with which transfers to the replica.

    :param jobs: the updates of the batch, and those that were punted from earlier ones.
    :param updates: the id of each job, and its norm after multiplying by the step size.
    :param punted: indices of the jobs that only the replica needs, in the server's order.
    :param groups: the server's.
    :param network: without what these reserve.
    :param divergence: after everything that was decided on before. It is left as it is.
    :param limit: what the bound must not exceed.
    :param busy: until when the replicas are busy with earlier groups.
    :param coming: the divergence after each of the replicas' transfers that are on their way, and do not count in
        ``divergence``: nobody waits for them, and whenever they come the limit is to be kept.
    :param under_way: steps of the servers that count in ``divergence`` and may still come after the replicas' first ones;
        until ``servers_busy``.
    :returns: without any group if the first one would exceed the limit even if the replica had all before it; or, while it
        catches up, as it is.
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
        """What keeps the limit although the replica gets nothing more than in this state."""
        walk = _Walk(replace(self, divergence=divergence), served, [])
        while walk.serve():
            pass
        return Bounded(served[: walk.served], [], 0, self._left(served[: walk.served]))

    def all_at_once(self, served: list[Group]) -> Bounded | int:
        """Without delays. The number of the first group that would exceed the limit, if one does."""
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
        """With the last group delayed until it does not exceed the limit any more, if it ever does not."""
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
        """Whether the replicas keep it however many of the steps under way the servers have taken before."""
        if self.limit == math.inf:
            return True
        state = self.divergence.copy()
        for group in replicated:
            if not set(self.punted).issuperset(group.members):
                break  # the servers have them after what is under way
            state.replicate([self.updates[index][0] for index in group.members])
            if any(state.bound(behind) > self.limit for behind in range(1, under_way + 1)):
                return False
        return True

    def nothing(self) -> Bounded:
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
    """The steps of server and replica one after another, as long as none exceeds the limit."""

    def __init__(self, plan: _Plan, served: Sequence[Group], replicas: Sequence[Group]) -> None:
        self._plan, self._groups, self._replicas = plan, served, replicas
        self._state = plan.divergence.copy()
        self._at_server = set(plan.punted)
        self.served = self.replicated = 0
        #: Whether what exceeded the limit is a step of the replica.
        self.replica_exceeds = False

    def serve(self) -> bool:
        """The server's next step, and those that the replica can take before it; after the last, those until then."""
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
        """Whether the server's next step would keep the limit now."""
        trial = self._state.copy()
        self._serve(trial)
        return trial.bound() <= self._plan.limit

    def replicate(self) -> bool:
        """The replica's next step. False if there is none, or if it would exceed the limit."""
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
