"""Replication: choose the transfers to the replica and the server's waits, so that the two never differ by more than
allowed.

MLfabric, section 5.3: the replica's transfers are planned on the network left over by the server's, with aggregators of
its own, in the server's order. Transfers that are complete when the batch is complete at the server are sent with it.
The others are punted: they are planned again with the next batch and may be summed with it. If the bound would be
exceeded, the batch's last transfer to the server is delayed until enough has arrived at the replica.

Differences from the paper:

- The paper checks the bound when the batch is complete. Here every transfer that either side applies has to keep it.
  If an earlier transfer would exceed it, the batch ends with that one, and the rest waits for the next batch. The
  replica applies nothing that the server has not.
- In the paper the replica shares the server's link, so that little of a batch reaches it in time, and punted updates
  are summed. A replica on a host of its own would get all of a batch, in small sums, for any bound. So here, if there
  is a bound, a batch is punted as a whole where that keeps the bound. :func:`catch_up` sends punted updates.

Catching up sends punted updates as late as the bound allows, in few and large sums: with a larger bound more updates
are punted and then summed. It begins when half of the bound is used up. The other half lets the servers go on
meanwhile without waiting. It also begins when workers would have to keep too many updates. Nobody knows when these
transfers will arrive. So every update of the servers has to keep the bound for any time of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from sparkdl_comm.fabric.core.aggregate import Group, Side, aggregate, deliver, reserve
from sparkdl_comm.fabric.core.messages import Decision, Push
from sparkdl_comm.fabric.core.network import ResidualNetwork
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.state import CatchUpTurn, SchedulerState
from sparkdl_comm.fabric.core.updates import Divergence

#: Share of the divergence bound at which punted updates are sent.
_SEND_SHARE = 0.5
#: Maximum number of punted updates per worker before they are sent.
_MOST_KEPT = 8


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


@dataclass(frozen=True)
class ReplicationTask:
    """Batch to be planned within the bound, and what came before it.

    - ``jobs``: updates of the batch, and updates punted from earlier batches.
    - ``updates``: id of each job, and its norm after multiplying by the step size.
    - ``punted``: indices of the jobs that only the replica needs, in the server's order.
    - ``network``: residual network before the batch.
    - ``servers``, ``replicas``: hosts of both sides.
    - ``divergence``: state after all earlier decisions. It is not changed.
    - ``limit``: largest value that the bound may have.
    - ``now``: seconds.
    - ``catch_up_states``: divergence after each transfer with which the replica catches up. These do not count in
      ``divergence``. Nobody waits for them, so the limit must hold for any time of their arrival.
    - ``steps_under_way``: steps of the server that ``divergence`` includes, but that the server may take after the
      replica's first ones, until ``servers.busy_until``.
    """

    jobs: Sequence[Job]
    updates: Sequence[tuple[int, float]]
    punted: Sequence[int]
    network: ResidualNetwork
    servers: Side
    replicas: Side
    divergence: Divergence
    limit: float
    now: float
    catch_up_states: Sequence[Divergence] = ()
    steps_under_way: int = 0

    def plan(self, groups: Sequence[Group]) -> ReplicationPlan:
        """Return how many of the server's planned ``groups`` can be served, and with which transfers to the replica.

        Nothing is served if the first group would exceed the limit even with a replica that has everything before it.
        While the replica catches up, nothing more is sent to it, so the first group must keep the limit without that.
        """
        found = self._search(groups)
        if self._keeps_limit(found.replica_groups):
            return found
        later = max(self.now, self.servers.busy_until)
        replicas = replace(self.replicas, busy_until=max(self.replicas.busy_until, later))
        return replace(replace(self, now=later, replicas=replicas)._search(groups), needs_servers_first=True)

    def _search(self, groups: Sequence[Group]) -> ReplicationPlan:
        server_groups = list(groups)
        if server_groups and self.limit < math.inf:
            alone = min(
                (
                    self._plan_without_replica(server_groups, state)
                    for state in (self.divergence, *self.catch_up_states)
                ),
                key=lambda plan: len(plan.server_groups),
            )
            if self.catch_up_states or len(alone.server_groups) == len(server_groups):
                return alone
        while server_groups:
            found = self._plan_at_once(server_groups)
            if isinstance(found, ReplicationPlan):
                return found
            server_groups = server_groups[: found + 1]
            if late := self._plan_with_delay(server_groups):
                return late
            server_groups.pop()
        return ReplicationPlan([], [], 0, self.network.copy())

    def _plan_without_replica(self, server_groups: list[Group], divergence: Divergence) -> ReplicationPlan:
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

    def _plan_at_once(self, server_groups: list[Group]) -> ReplicationPlan | int:
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

    def _plan_with_delay(self, server_groups: list[Group]) -> ReplicationPlan | None:
        """Return the plan whose last group waits until it keeps the limit. None if no wait is enough."""
        before, last = server_groups[:-1], server_groups[-1]
        residual = self._residual_after(before)
        reserve(last, self.jobs, residual, self.servers, deliveries=False)
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
        reserve(last, self.jobs, residual, self.servers, deliveries=False)
        late = replace(last, ready=max([last.ready, *(group.done for group in replica_groups)]))
        after = max([late.ready, *(group.done for group in before)])
        deliver(late, self.jobs, residual, self.servers, after)
        return ReplicationPlan([*before, late], replica_groups, len(replica_groups), residual)

    def _keeps_limit(self, replica_groups: Sequence[Group]) -> bool:
        """Return whether the replicas keep the limit, however many of the steps under way the servers have taken
        before."""
        if self.limit == math.inf:
            return True
        state = self.divergence.copy()
        for group in replica_groups:
            if not set(self.punted).issuperset(group.members):
                break  # the servers apply new updates after those under way
            state.replicate([self.updates[index][0] for index in group.members])
            if any(state.bound(behind) > self.limit for behind in range(1, self.steps_under_way + 1)):
                return False
        return True

    def _residual_after(self, server_groups: Sequence[Group], replica_groups: Sequence[Group] = ()) -> ResidualNetwork:
        residual = self.network.copy()
        for group in server_groups:
            reserve(group, self.jobs, residual, self.servers)
        for group in replica_groups:
            reserve(group, self.jobs, residual, self.replicas)
        return residual

    def _plan_replica_groups(self, server_groups: Sequence[Group], residual: ResidualNetwork) -> list[Group]:
        queue = [*self.punted, *(index for group in server_groups for index in group.members)]
        return aggregate(self.jobs, queue, residual.copy(), self.replicas, self.now)


class _StepSimulation:
    """Simulation of the steps of server and replica, in order, up to the first step that exceeds the limit."""

    def __init__(self, task: ReplicationTask, server_groups: Sequence[Group], replicas: Sequence[Group]) -> None:
        self._task, self._groups, self._replicas = task, server_groups, replicas
        self._state = task.divergence.copy()
        self._server_jobs = set(task.punted)
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
        return trial.bound() <= self._task.limit

    def replicate(self) -> bool:
        """Take the replica's next step. Return False if there is none, or if it would exceed the limit."""
        if self.replicated_count == len(self._replicas):
            return False
        trial = self._state.copy()
        trial.replicate([self._task.updates[index][0] for index in self._replicas[self.replicated_count].members])
        if trial.bound() > self._task.limit:
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
            [self._task.updates[index][0] for index in members], [self._task.updates[index][1] for index in members]
        )


def catch_up(state: SchedulerState, network: ResidualNetwork, now: float) -> list[Decision]:
    """Return the transfers of punted updates that the servers have applied, if it is time to send them.

    Subtract the transfers' bandwidth from ``network``.
    """
    if state.catch_up_turns or state.is_copying or state.has_diverged or not _is_time(state):
        return []
    by_id = state.updates.by_id
    numbers = list(takewhile(lambda number: by_id[number].is_applied, state.updates.punted))
    jobs = [Job(state.roles.workers[by_id[number].update.worker], by_id[number].update.sizes) for number in numbers]
    side = state.get_side("replica")
    groups = aggregate(jobs, range(len(jobs)), network.copy(), side, now, link_weight=1.0)
    steps = [[numbers[index] for index in group.members] for group in groups]
    decisions: list[Decision] = []
    for group, updates in zip(groups, steps[: _count_allowed(state, steps)], strict=False):
        reserve(group, jobs, network, side)
        turn = state.turns["replica"]
        pushes = state.deliver(group, updates, "replica")
        missing = {push.id for push in pushes if push.turn is not None}
        state.catch_up_turns[turn] = CatchUpTurn(tuple(updates), missing)
        decisions += pushes
    return decisions


def record_catch_up(state: SchedulerState, ended: Push) -> None:
    """Record that a transfer to a replica has ended. After the last transfer of its turn, count the turn's updates as
    replicated."""
    for turn, each in state.catch_up_turns.items():
        if ended.id in each.missing:
            each.missing.discard(ended.id)
            if not each.missing:
                del state.catch_up_turns[turn]
                state.divergence.replicate(ended.updates)
                state.divergence.prune()
            return


def _count_allowed(state: SchedulerState, steps: Sequence[Sequence[int]]) -> int:
    """Return the number of leading steps that the replicas may take, whichever steps under way the servers have
    applied by then."""
    under_way = len(state.list_server_turns())
    divergence = state.divergence.copy()
    for number, updates in enumerate(steps):
        divergence.replicate(updates)
        if any(divergence.bound(behind) > state.params.divergence_bound for behind in range(under_way + 1)):
            return number
    return len(steps)


def _is_time(state: SchedulerState) -> bool:
    limit, updates = state.params.divergence_bound, state.updates
    if limit == math.inf:
        return False
    most = _MOST_KEPT * (len(state.roles.workers) - len(updates.lost_workers))
    return len(updates.punted) >= most or state.divergence.bound() > _SEND_SHARE * limit
