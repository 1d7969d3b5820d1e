"""Loss of a node: cancel its transfers, and send its updates again or give them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sparkdl_comm.errors import RankLostError
from sparkdl_comm.fabric.core.messages import (
    Cancellation,
    Decision,
    ModelTransfer,
    Node,
    Push,
    Role,
    SkippedTurn,
    SmallerSum,
    StateCopy,
    Transfer,
)
from sparkdl_comm.fabric.core.network import ResidualNetwork, get_end, to_pieces
from sparkdl_comm.fabric.core.state import SchedulerState
from sparkdl_comm.fabric.core.updates import Divergence


def remove_node(state: SchedulerState, node: Node, versions: Sequence[int]) -> list[Decision]:
    """Remove a lost node from the state.

    :param versions: see :class:`~sparkdl_comm.fabric.core.messages.NodeLost`.
    :raises RankLostError: the node is a server without replica.
    """
    if node in state.lost_nodes:
        return []
    state.lost_nodes.add(node)
    if node.role == "worker":
        return _correct_counts(state, _lose_worker(state, node))
    if node.role == "aggregator":
        return _correct_counts(state, _lose_aggregator(state, node))
    if node.role == state.serving_role:
        return _lose_servers(state, node, versions)
    if node.role == "replica" and state.replicas:
        return [*_cancel_all(state, "replica"), *state.updates.lose_replicas()]
    return []


def plan_copies(state: SchedulerState, network: ResidualNetwork, now: float) -> list[Decision]:
    """Send each server's whole state to its replica. Transfers under way to the replicas are cancelled, because the
    copies contain them."""
    decisions = _cancel_all(state, "replica")
    made: list[int] = []
    for shard, (server, replica) in enumerate(zip(state.servers, state.replicas, strict=True)):
        target = Node(state.serving_role, shard)
        after = tuple(transfer.id for transfer in state.transfers.list_all() if transfer.target == target)
        ready = max(now, state.busy_until[state.serving_role])
        parts = 2 if state.params.momentum else 1
        schedule = network.fill(server, replica, parts * state.sizes[shard], ready)
        network.reserve(server, replica, schedule)
        copy = StateCopy(
            id=next(state.ids),
            source=target,
            target=Node("replica", shard),
            bytes=parts * state.sizes[shard],
            after=after,
            schedule=to_pieces(schedule),
            shard=shard,
            turn=state.turns[state.serving_role],
            resume=state.turns["replica"],
        )
        state.add_transfer(copy)
        state.busy_until["replica"] = max(state.busy_until["replica"], get_end(schedule, ready))
        decisions.append(copy)
        made.append(copy.id)
    state.updates.record_copies(made)
    state.has_diverged = False
    return decisions


def record_copy(state: SchedulerState, copy: StateCopy) -> list[Decision]:
    """Record that a replica has received its server's state."""
    if not state.is_copying:
        state.divergence = Divergence(state.params.momentum)
    return list(state.updates.record_arrival(copy.id, state.updates.by_id))


def _lose_worker(state: SchedulerState, worker: Node) -> list[Decision]:
    state.requests = [request for request in state.requests if request.worker != worker.index]
    decisions: list[Decision] = []
    for transfer in state.transfers.list_all():
        if worker in (transfer.source, transfer.target) and transfer.id in state.transfers:
            decisions += _cancel(state, transfer)
            if isinstance(transfer, Push) and transfer.turn is None:
                decisions += _leave_out(state, transfer)
    state.has_diverged |= state.updates.remove_worker(worker.index) or bool(decisions)
    return decisions


def _leave_out(state: SchedulerState, arrival: Push) -> list[Decision]:
    """Remove a cancelled arrival from the sums that wait for it."""
    decisions: list[Decision] = []
    for transfer in state.transfers.list_all():
        if not isinstance(transfer, Push) or arrival.id not in transfer.after or arrival.target != transfer.source:
            continue
        rest = tuple(number for number in transfer.updates if number not in arrival.updates)
        if rest:
            scale = dict(zip(transfer.updates, transfer.scales, strict=True))
            scales = tuple(scale[number] for number in rest)
            after = tuple(other for other in transfer.after if other != arrival.id)
            state.transfers.replace(replace(transfer, updates=rest, scales=scales, after=after))
            if transfer.target == Node(state.serving_role, 0):
                state.version -= len(arrival.updates)
            decisions.append(SmallerSum(transfer.id, rest))
        else:
            decisions += _cancel(state, transfer)
    return decisions


def _lose_aggregator(state: SchedulerState, aggregator: Node) -> list[Decision]:
    decisions: list[Decision] = []
    for transfer in state.transfers.list_all():
        if aggregator in (transfer.source, transfer.target):
            decisions += _cancel(state, transfer)
            if isinstance(transfer, ModelTransfer):
                state.repeat_requests(transfer.workers)
            elif isinstance(transfer, Push):
                state.has_diverged = True
                if transfer.turn is not None and transfer.target.role == state.serving_role:
                    decisions += state.updates.undo_serving(transfer.id, transfer.updates, len(state.servers))
    return decisions


def _lose_servers(state: SchedulerState, server: Node, versions: Sequence[int]) -> list[Decision]:
    if not state.replicas:
        raise RankLostError(f"{server.role} {server.index} is lost, and there is no replica to take over")
    state.serving_role = "replica"
    state.version = max(
        version
        + sum(
            len(push.updates)
            for push in state.transfers.list_all()
            if isinstance(push, Push) and push.target == Node("replica", shard)
        )
        for shard, version in enumerate(versions)
    )
    # Cancelled before the copies, because a replica whose copy is cancelled applies the turns that follow.
    following = _find_pushes_after_copies(state)
    decisions = _cancel_all(state, "replica") if following else []
    decisions += _cancel_all(state, "server")
    state.divergence = Divergence(state.params.momentum)
    state.catch_up_turns = {}
    decisions += state.updates.take_over()
    for push in following:
        decisions += state.updates.undo_serving(push.id, push.updates, len(state.servers))
    return decisions


def _find_pushes_after_copies(state: SchedulerState) -> list[Push]:
    """Return the transfers that replicas were to apply after a copy under way.

    Without the copies they have to be planned again. The replicas then have updates that are not in the copies, so
    delays would be larger.
    """
    if not state.is_copying:
        return []
    return [push for push in state.transfers.list_all() if isinstance(push, Push) and push.target.role == "replica"]


def _cancel_all(state: SchedulerState, role: Role) -> list[Decision]:
    """Cancel all transfers to or from the nodes of a role, and the arrivals that their sums wait for. For
    ``"server"``, cancel all models too."""
    decisions: list[Decision] = []
    parts: set[int] = set()
    for transfer in reversed(state.transfers.list_all()):
        theirs = role in (transfer.source.role, transfer.target.role)
        if theirs or transfer.id in parts or (role == "server" and isinstance(transfer, ModelTransfer)):
            decisions += _cancel(state, transfer)
            if transfer.source.role == "aggregator":
                parts |= {other for other in transfer.after if state.transfers.reaches(other, transfer.source)}
            if isinstance(transfer, ModelTransfer):
                state.repeat_requests(transfer.workers)
    return _correct_counts(state, decisions)


def _cancel(state: SchedulerState, transfer: Transfer) -> list[Decision]:
    state.transfers.remove(transfer.id)
    decisions: list[Decision] = [Cancellation(transfer.id)]
    if isinstance(transfer, Push) and transfer.turn is not None:
        decisions.append(SkippedTurn(transfer.target, transfer.turn, len(transfer.updates)))
        if transfer.target.role == "replica":
            state.catch_up_turns.pop(transfer.turn, None)
    elif isinstance(transfer, StateCopy):
        state.updates.undo_copy(transfer.id)
    return decisions


def _correct_counts(state: SchedulerState, decisions: list[Decision]) -> list[Decision]:
    """Return the decisions with corrected counts of skipped updates.

    If only some servers skip a turn, its updates count there, because the other servers have them. If all servers
    skip it, nobody has the updates, and the version falls. Replicas do not count them, because they get a copy.
    """
    skipping = Counter(d.turn for d in decisions if isinstance(d, SkippedTurn) and d.target.role == state.serving_role)
    counted: list[Decision] = []
    for decision in decisions:
        if isinstance(decision, SkippedTurn):
            if decision.target.role != state.serving_role:
                decision = replace(decision, count=0)
            elif skipping[decision.turn] == len(state.servers):
                if decision.target.index == 0:
                    state.version -= decision.count
                decision = replace(decision, count=0)
        counted.append(decision)
    # A skipped turn lets the next ones be applied, so cancellations come first.
    return sorted(counted, key=lambda decision: isinstance(decision, SkippedTurn))
