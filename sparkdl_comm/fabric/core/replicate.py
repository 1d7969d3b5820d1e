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
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork


@dataclass(frozen=True)
class SideHosts:
    """Hosts of the servers, of the replicas, and of each side's aggregators in the order of use."""

    servers: Sequence[int]
    aggregators: Sequence[int]
    replicas: Sequence[int]
    replica_aggregators: Sequence[int]


@dataclass(frozen=True)
class ReplicationPlan:
    """Part of a batch that keeps the bound.

    - ``server_groups``: the server's groups, a prefix of the planned ones.
    - ``replica_groups``: the replica's groups.
    - ``awaited_count``: number of ``replica_groups`` that must have arrived before the last of ``server_groups``
      starts.
    - ``residual``: residual network after all groups.
    - ``needs_servers_first``: ``replica_groups`` may start only when the servers have what was under way to them
      before.
    """

    server_groups: list[Group]
    replica_groups: list[Group]
    awaited_count: int
    residual: ResidualNetwork
    needs_servers_first: bool = False


def plan_replication(
    jobs: Sequence[Job],
    updates: Sequence[tuple[int, float]],
    punted: Sequence[int],
    groups: Sequence[Group],
    network: ResidualNetwork,
    sides: SideHosts,
    divergence: Divergence,
    limit: float,
    now: float,
    busy: float = -math.inf,
    catch_up_states: Sequence[Divergence] = (),
    steps_under_way: int = 0,
    servers_busy: float = -math.inf,
) -> ReplicationPlan:
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
    :param catch_up_states: divergence after each transfer with which the replicas catch up. These do not count in
        ``divergence``. Nobody waits for them, so the limit must hold for any time of their arrival.
    :param steps_under_way: steps of the servers that ``divergence`` includes and that may still come after the
        replicas'
        first ones, until ``servers_busy``.
    """
    plan = _Plan(jobs, updates, punted, network, sides, divergence, limit, now, busy)
    found = _search_plan(plan, groups, catch_up_states)
    if plan.keeps_limit(found.replica_groups, steps_under_way):
        return found
    later = max(now, servers_busy)
    return replace(
        _search_plan(replace(plan, now=later, busy=max(busy, later)), groups, catch_up_states), needs_servers_first=True
    )


def _search_plan(plan: _Plan, groups: Sequence[Group], catch_up_states: Sequence[Divergence]) -> ReplicationPlan:
    divergence, limit = plan.divergence, plan.limit
    server_groups = list(groups)
    if server_groups and limit < math.inf:
        alone = min(
            (plan.plan_without_replica(server_groups, state) for state in (divergence, *catch_up_states)),
            key=_count_served,
        )
        if catch_up_states or len(alone.server_groups) == len(server_groups):
            return alone
    while server_groups:
        found = plan.plan_at_once(server_groups)
        if isinstance(found, ReplicationPlan):
            return found
        server_groups = server_groups[: found + 1]
        if late := plan.plan_with_delay(server_groups):
            return late
        server_groups.pop()
    return plan.plan_nothing()


def _count_served(plan: ReplicationPlan) -> int:
    return len(plan.server_groups)


@dataclass(frozen=True)
class _Plan:
    jobs: Sequence[Job]
    updates: Sequence[tuple[int, float]]
    punted: Sequence[int]
    network: ResidualNetwork
    sides: SideHosts
    divergence: Divergence
    limit: float
    now: float
    busy: float

    def plan_without_replica(self, server_groups: list[Group], divergence: Divergence) -> ReplicationPlan:
        """Return the groups that keep the limit if the replica gets nothing beyond ``divergence``."""
        simulation = _StepSimulation(replace(self, divergence=divergence), server_groups, [])
        while simulation.serve():
            pass
        return ReplicationPlan(
            server_groups[: simulation.served_count],
            [],
            0,
            self._residual_after(server_groups[: simulation.served_count]),
        )

    def plan_at_once(self, server_groups: list[Group]) -> ReplicationPlan | int:
        """Return the plan without delays, or the index of the first group that would exceed the limit."""
        replicas = self._plan_replica_groups(server_groups, self._residual_after(server_groups))
        while True:
            simulation = _StepSimulation(self, server_groups, replicas)
            while simulation.serve():
                pass
            if simulation.has_replica_exceeded:
                replicas = replicas[: simulation.replicated_count]
            elif simulation.served_count < len(server_groups):
                return simulation.served_count
            else:
                replica_groups = replicas[: simulation.replicated_count]
                return ReplicationPlan(
                    server_groups, replica_groups, 0, self._residual_after(server_groups, replica_groups)
                )

    def plan_with_delay(self, server_groups: list[Group]) -> ReplicationPlan | None:
        """Return the plan whose last group waits until it keeps the limit. None if no wait is enough."""
        before, last = server_groups[:-1], server_groups[-1]
        residual = self._residual_after(before)
        reserve(last, self.jobs, residual, self.sides.servers, self.sides.aggregators, deliveries=False)
        replicas = self._plan_replica_groups(before, residual)
        simulation = _StepSimulation(self, [*before, last], replicas)
        while simulation.served_count < len(before):
            if not simulation.serve():
                return None
        while not simulation.can_serve_next():
            if not simulation.replicate():
                return None
        replica_groups = replicas[: simulation.replicated_count]
        residual = self._residual_after(before, replica_groups)
        reserve(last, self.jobs, residual, self.sides.servers, self.sides.aggregators, deliveries=False)
        late = replace(last, ready=max([last.ready, *(group.done for group in replica_groups)]))
        after = max([late.ready, *(group.done for group in before)])
        deliver(late, self.jobs, residual, self.sides.servers, self.sides.aggregators, after)
        return ReplicationPlan([*before, late], replica_groups, len(replica_groups), residual)

    def keeps_limit(self, replica_groups: Sequence[Group], steps_under_way: int) -> bool:
        """Return whether the replicas keep the limit, however many of the steps under way the servers have taken
        before."""
        if self.limit == math.inf:
            return True
        state = self.divergence.copy()
        for group in replica_groups:
            if not set(self.punted).issuperset(group.members):
                break  # the servers apply new updates after those under way
            state.replicate([self.updates[index][0] for index in group.members])
            if any(state.bound(behind) > self.limit for behind in range(1, steps_under_way + 1)):
                return False
        return True

    def plan_nothing(self) -> ReplicationPlan:
        """Return a plan without transfers."""
        return ReplicationPlan([], [], 0, self.network.copy())

    def _residual_after(self, server_groups: Sequence[Group], replica_groups: Sequence[Group] = ()) -> ResidualNetwork:
        residual = self.network.copy()
        for group in server_groups:
            reserve(group, self.jobs, residual, self.sides.servers, self.sides.aggregators)
        for group in replica_groups:
            reserve(group, self.jobs, residual, self.sides.replicas, self.sides.replica_aggregators)
        return residual

    def _plan_replica_groups(self, server_groups: Sequence[Group], residual: ResidualNetwork) -> list[Group]:
        queue = [*self.punted, *(index for group in server_groups for index in group.members)]
        sides = self.sides
        return aggregate(
            self.jobs, queue, residual.copy(), sides.replicas, sides.replica_aggregators, self.now, self.busy
        )


class _StepSimulation:
    """Simulation of the steps of server and replica in order, as long as each keeps the limit."""

    def __init__(self, plan: _Plan, server_groups: Sequence[Group], replicas: Sequence[Group]) -> None:
        self._plan, self._groups, self._replicas = plan, server_groups, replicas
        self._state = plan.divergence.copy()
        self._server_jobs = set(plan.punted)
        self.served_count = self.replicated_count = 0
        #: A step of the replica exceeded the limit.
        self.has_replica_exceeded = False

    def serve(self) -> bool:
        """Take the replica's steps that come before the server's next step, then that step. After the last one, take
        the rest in time.

        Return False if there is no next step or one would exceed the limit.
        """
        until = self._groups[min(self.served_count, len(self._groups) - 1)].done
        while self._can_replicate(until):
            if not self.replicate():
                self.has_replica_exceeded = True
                return False
        if self.served_count == len(self._groups) or not self.can_serve_next():
            return False
        self._serve(self._state)
        self._server_jobs.update(self._groups[self.served_count].members)
        self.served_count += 1
        return True

    def can_serve_next(self) -> bool:
        """Return whether the server's next step would keep the limit now."""
        trial = self._state.copy()
        self._serve(trial)
        return trial.bound() <= self._plan.limit

    def replicate(self) -> bool:
        """Take the replica's next step. Return False if there is none, or if it would exceed the limit."""
        if self.replicated_count == len(self._replicas):
            return False
        trial = self._state.copy()
        trial.replicate([self._plan.updates[index][0] for index in self._replicas[self.replicated_count].members])
        if trial.bound() > self._plan.limit:
            return False
        self._state = trial
        self.replicated_count += 1
        return True

    def _can_replicate(self, until: float) -> bool:
        if self.replicated_count == len(self._replicas):
            return False
        group = self._replicas[self.replicated_count]
        return group.done <= until and self._server_jobs.issuperset(group.members)

    def _serve(self, state: Divergence) -> None:
        members = self._groups[self.served_count].members
        state.serve(
            [self._plan.updates[index][0] for index in members], [self._plan.updates[index][1] for index in members]
        )
