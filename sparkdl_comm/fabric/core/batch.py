"""Planning of one batch: order the ready updates, group them, replicate them, and turn the plan into decisions.

Overtaking moves slow updates under way behind faster ones, in the order in which the servers apply them. Servers apply
updates in the order of decisions, because otherwise nobody could predict an update's delay. So an update on a slow
link would hold up all that arrive sooner. If its delay bound allows it, it gets a turn behind them, whether they are
under way or new. Until all servers know of the change, some may apply the slow update in its old turn. So all other
updates have to keep their delay bounds behind it, too. With replicas nothing is overtaken, because the replicas'
schedules rely on the old order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.fabric.core.aggregate import Group, Side, aggregate, deliver, distribute
from sparkdl_comm.fabric.core.messages import Decision, ModelTransfer, NewTurn, Node, SkippedTurn
from sparkdl_comm.fabric.core.network import ResidualNetwork, to_pieces
from sparkdl_comm.fabric.core.order import Job, order
from sparkdl_comm.fabric.core.replication import ReplicationPlan, ReplicationTask
from sparkdl_comm.fabric.core.state import PendingTurn, SchedulerState

#: Minimum seconds by which an overtaken update must be later. Smaller gains are not worth the messages.
_WORTHWHILE = 0.01


@dataclass(frozen=True)
class _BatchPlan:
    """Plan of a batch.

    - ``updates``: ids of the updates punted from earlier batches, then of new ones. Groups refer to their indices.
    - ``overdue``: ids of updates that cannot keep their deadlines.
    - ``over_limit``: ids of updates that exceed the divergence bound on their own.
    - ``scales``: step sizes by id.

    New updates that are neither served nor in ``overdue`` or ``over_limit`` wait for the next batch.
    """

    updates: Sequence[int]
    replication: ReplicationPlan
    overdue: Sequence[int]
    over_limit: Sequence[int]
    scales: dict[int, float]


def send_updates(state: SchedulerState, network: ResidualNetwork, now: float) -> tuple[list[Decision], ResidualNetwork]:
    """Plan everything that is pending or punted. Return the decisions and the residual network after them."""
    batch, overtaken = _plan_batch(state, network, now)
    decisions = _make_pushes(state, batch, overtaken) + _skip_old_turns(overtaken)
    return decisions, batch.replication.residual


def overtake(state: SchedulerState) -> list[Decision]:
    """Return the decisions that move pushes under way behind faster ones, when no update is planned."""
    moved = _find_blocking_turns(state, state.list_server_turns(), [])
    decisions: list[Decision] = []
    for group in moved:
        decisions += _move_to_last_turn(state, group)
    return decisions + _skip_old_turns(moved)


def _plan_batch(state: SchedulerState, network: ResidualNetwork, now: float) -> tuple[_BatchPlan, list[PendingTurn]]:
    """Plan everything that is pending or punted. Return the plan with the pushes under way that move behind some of
    its groups, in the order of their ends.

    :param network: residual network; it is not changed.
    """
    queue = state.list_server_turns()
    moved = [] if state.replicas else queue
    while True:
        busy = max([now, *(group.end for group in queue if group not in moved)])
        servers = replace(state.get_side(state.serving_role), busy_until=busy)
        batch = _plan_updates_behind(state, network, servers, now)
        found = _find_blocking_turns(state, queue, batch.replication.server_groups) if moved else []
        if len(found) >= len(moved):
            return batch, found
        moved = found


def _plan_updates_behind(state: SchedulerState, network: ResidualNetwork, servers: Side, now: float) -> _BatchPlan:
    """Plan everything that is pending or punted, behind what keeps the servers busy."""
    by_id, params = state.updates.by_id, state.params
    ids = [*state.updates.punted, *state.updates.pending]
    first = len(state.updates.punted)
    jobs = []
    for number in ids:
        update = by_id[number].update
        deadline = params.deadline(update.base, state.version)
        jobs.append(Job(state.roles.workers[update.worker], update.sizes, deadline))
    ordered = order(jobs[first:], network, servers.servers, now)
    placed = [first + index for index in ordered.kept]
    scales = {
        ids[index]: params.scale(version, by_id[ids[index]].update.base)
        for version, index in enumerate(placed, state.version + 1)
    }
    residual = network.copy()
    groups = aggregate(jobs, placed, residual, servers, now, state.updates.get_remaining_share(len(placed)))
    overdue = [ids[first + index] for index in ordered.dropped]
    if not state.replicas:
        return _BatchPlan(ids, ReplicationPlan(groups, [], 0, residual), overdue, [], scales)
    task = ReplicationTask(
        jobs,
        [(number, by_id[number].update.norm * scales.get(number, by_id[number].scale)) for number in ids],
        range(first),
        network,
        servers,
        state.get_side("replica"),
        state.divergence,
        params.divergence_bound,
        now,
        state.catch_up_states,
        len(state.list_server_turns()),
    )
    found = task.plan(groups)
    over_limit: list[int] = []
    if groups and not found.server_groups and not task.catch_up_states:
        alone = Group([placed[0]], ready=now)
        deliver(alone, jobs, network.copy(), servers, max(now, servers.busy_until))
        found = task.plan([alone])
        if not found.server_groups:
            over_limit.append(ids[placed[0]])
    return _BatchPlan(ids, found, overdue, over_limit, scales)


def _find_blocking_turns(
    state: SchedulerState, queue: Sequence[PendingTurn], new: Sequence[Group]
) -> list[PendingTurn]:
    """Return the members of the queue that should move behind faster ones, of the queue or of ``new``, in the order
    of their ends.

    A member that must keep its turn stays, and so does every member that ends before it.
    """
    soonest = new[0].done if new else math.inf
    ends = []
    for group in reversed(queue):
        if group.end > soonest + _WORTHWHILE:
            ends.append(group.end)
        soonest = min(soonest, group.end)
    while ends:
        first = min(ends)
        moved = sorted((group for group in queue if group.end >= first), key=lambda group: group.end)
        stuck = [group.end for group in moved if not _can_move(state, group, new)]
        if not stuck:
            return moved
        ends = [end for end in ends if end > max(stuck)]
    return []


def _move_to_last_turn(state: SchedulerState, group: PendingTurn) -> list[NewTurn]:
    """Move the pushes to a turn after all others so far, and return the decisions that tell the servers."""
    turn = state.turns[state.serving_role]
    state.turns[state.serving_role] += 1
    for push in group.pushes:
        state.transfers.replace(replace(push, turn=turn))
    return [NewTurn(push.id, turn) for push in group.pushes]


def _skip_old_turns(moved: Sequence[PendingTurn]) -> list[Decision]:
    """Return the decisions that tell each server to skip the turns from which pushes have moved.

    Send these decisions after those of :func:`_move_to_last_turn`: a push that waits for a skipped turn may have moved
    as well.
    """
    return [SkippedTurn(push.target, group.turn) for group in moved for push in group.pushes]


def _can_move(state: SchedulerState, group: PendingTurn, new: Sequence[Group]) -> bool:
    """Return whether the pushes may move: no server is known to have applied them, and they keep their delay bound.

    The bound must hold behind all other updates under way, in any order of application, and behind the groups of
    ``new`` that end before.
    """
    if len(group.pushes) < len(state.servers):
        return False
    applied = state.version - len(group.updates)
    applied += sum(len(one.members) for one in new if one.done <= group.end)
    for place, number in enumerate(group.updates):
        entry = state.updates.by_id.get(number)
        if entry is None:  # its worker was lost
            return False
        deadline = state.params.deadline(entry.update.base, applied + place)
        if deadline is not None and deadline < 1:
            return False
    return True


def _make_pushes(state: SchedulerState, batch: _BatchPlan, overtaken: Sequence[PendingTurn]) -> list[Decision]:
    """Return the decisions for a planned batch of updates, and record them in the state.

    :param overtaken: groups already under way, in the order of their ends, that get new turns among the batch's groups.
    """

    def name(group: Group) -> list[int]:
        return [batch.updates[index] for index in group.members]

    updates, plan, serving_role = state.updates, batch.replication, state.serving_role
    decisions: list[Decision] = [updates.drop(number, "deadline") for number in batch.overdue]
    decisions += [updates.drop(number, "divergence") for number in batch.over_limit]
    for number, scale in batch.scales.items():
        if number in updates.by_id:
            updates.by_id[number].scale = scale
    remaining = list(overtaken)
    earlier_pushes: list[int] = []
    if plan.needs_servers_first:
        earlier_pushes = [push.id for turn in state.list_server_turns() for push in turn.pushes]
    for group in plan.server_groups[:-1] if plan.awaited_count else plan.server_groups:
        while remaining and remaining[0].end < group.done:
            decisions += _move_to_last_turn(state, remaining.pop(0))
        decisions += state.deliver(group, name(group), serving_role)
    for moved in remaining:
        decisions += _move_to_last_turn(state, moved)
    awaited: list[int] = []
    for number, group in enumerate(plan.replica_groups):
        pushes = state.deliver(group, name(group), "replica", earlier_pushes)
        state.divergence.replicate(name(group))
        decisions += pushes
        if number < plan.awaited_count:
            awaited += [push.id for push in pushes if push.turn is not None]
    if plan.awaited_count:
        decisions += state.deliver(plan.server_groups[-1], name(plan.server_groups[-1]), serving_role, awaited)
    state.divergence.prune()
    return decisions


def send_models(state: SchedulerState, network: ResidualNetwork, batch: int, now: float) -> list[Decision]:
    """Return the transfers that answer all requests that may be answered now, and reserve them in ``network``.

    :param batch: number of the batch of models.
    """
    sizes, asking = state.sizes, state.answerable_workers
    if not asking:
        return []
    state.requests = [request for request in state.requests if request.worker not in asking]
    aggregators = state.list_aggregators(state.serving_role)
    jobs = [Job(state.roles.workers[worker], sizes) for worker in asking]
    side, link_weight = state.get_side(state.serving_role), state.updates.get_remaining_share(len(asking))
    decisions: list[Decision] = []
    for branch in distribute(jobs, network, side, now, link_weight):
        workers = tuple(asking[index] for index in branch.members)
        receiver = Node("worker", workers[0])
        if branch.distributor is not None:
            receiver = Node("aggregator", aggregators[branch.distributor])
        transfers = [
            ModelTransfer(
                id=next(state.ids),
                source=Node(state.serving_role, shard),
                target=receiver,
                bytes=sizes[shard],
                schedule=to_pieces(schedule),
                workers=workers,
                shard=shard,
                batch=batch,
            )
            for shard, schedule in enumerate(branch.arrivals)
        ]
        after = tuple(model.id for model in transfers)
        transfers += [
            ModelTransfer(
                id=next(state.ids),
                source=receiver,
                target=Node("worker", worker),
                bytes=sum(sizes),
                after=after,
                schedule=to_pieces(schedule),
                workers=(worker,),
                shard=None,
                batch=batch,
            )
            for worker, schedule in zip(workers, branch.onward, strict=False)
        ]
        for model in transfers:
            state.add_transfer(model)
        decisions += transfers
    return decisions
