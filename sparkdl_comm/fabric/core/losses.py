"""Loss of a node: cancel its transfers, and send its updates again or give them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from sparkdl_comm.errors import RankLostError
from sparkdl_comm.fabric.core.decisions import (
    Cancellation,
    Decision,
    ModelTransfer,
    Push,
    SkippedTurn,
    SmallerSum,
    StateCopy,
    Transfer,
)
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.ledger import Ledger
from sparkdl_comm.fabric.core.nodes import Node, Role
from sparkdl_comm.fabric.core.pending_transfers import to_pieces
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork, get_end


def remove_node(ledger: Ledger, node: Node, versions: Sequence[int]) -> list[Decision]:
    """Remove a lost node from the ledger.

    :param versions: see :class:`~sparkdl_comm.fabric.core.events.NodeLost`.
    :raises RankLostError: the node is a server without replica.
    """
    if node in ledger.lost_nodes:
        return []
    ledger.lost_nodes.add(node)
    if node.role == "worker":
        return _correct_counts(ledger, _lose_worker(ledger, node))
    if node.role == "aggregator":
        return _correct_counts(ledger, _lose_aggregator(ledger, node))
    if node.role == ledger.serving_role:
        return _lose_servers(ledger, node, versions)
    return _lose_replicas(ledger) if node.role == "replica" and ledger.replicas else []


def plan_copies(ledger: Ledger, network: ResidualNetwork, now: float) -> list[Decision]:
    """Send each server's whole state to its replica. Transfers under way to the replicas are cancelled, because the
    copies contain them."""
    decisions = _cancel_all(ledger, "replica")
    made: list[int] = []
    for shard, (server, replica) in enumerate(zip(ledger.servers, ledger.replicas, strict=True)):
        target = Node(ledger.serving_role, shard)
        after = tuple(
            transfer.id for transfer in ledger.pending_transfers.list_transfers() if transfer.target == target
        )
        ready = max(now, ledger.busy_until[ledger.serving_role])
        parts = 2 if ledger.rules.momentum else 1
        schedule = network.fill(server, replica, parts * ledger.sizes[shard], ready)
        network.reserve(server, replica, schedule)
        copy = StateCopy(
            id=next(ledger.ids),
            source=target,
            target=Node("replica", shard),
            bytes=parts * ledger.sizes[shard],
            after=after,
            schedule=to_pieces(schedule),
            shard=shard,
            turn=ledger.turns[ledger.serving_role],
            resume=ledger.turns["replica"],
        )
        ledger.add_transfer(copy)
        ledger.busy_until["replica"] = max(ledger.busy_until["replica"], get_end(schedule, ready))
        decisions.append(copy)
        made.append(copy.id)
    ledger.update_ledger.record_copies(made)
    ledger.has_diverged = False
    return decisions


def record_copy(ledger: Ledger, copy: StateCopy) -> list[Decision]:
    """Record that a replica has received its server's state."""
    if not ledger.is_copying:
        ledger.divergence = Divergence(ledger.rules.momentum)
    return list(ledger.update_ledger.record_arrival(copy.id, ledger.update_ledger.by_id))


def _lose_worker(ledger: Ledger, worker: Node) -> list[Decision]:
    ledger.requests = [request for request in ledger.requests if request.worker != worker.index]
    decisions: list[Decision] = []
    for transfer in ledger.pending_transfers.list_transfers():
        if worker in (transfer.source, transfer.target) and transfer.id in ledger.pending_transfers:
            decisions += _cancel(ledger, transfer)
            if isinstance(transfer, Push) and transfer.turn is None:
                decisions += _leave_out(ledger, transfer)
    ledger.has_diverged |= ledger.update_ledger.remove_worker(worker.index) or bool(decisions)
    return decisions


def _leave_out(ledger: Ledger, arrival: Push) -> list[Decision]:
    """Remove a cancelled arrival from the sums that wait for it."""
    decisions: list[Decision] = []
    for transfer in ledger.pending_transfers.list_transfers():
        if not isinstance(transfer, Push) or arrival.id not in transfer.after or arrival.target != transfer.source:
            continue
        rest = tuple(number for number in transfer.updates if number not in arrival.updates)
        if rest:
            scale = dict(zip(transfer.updates, transfer.scales, strict=True))
            scales = tuple(scale[number] for number in rest)
            after = tuple(other for other in transfer.after if other != arrival.id)
            ledger.pending_transfers.replace(replace(transfer, updates=rest, scales=scales, after=after))
            if transfer.target == Node(ledger.serving_role, 0):
                ledger.version -= len(arrival.updates)
            decisions.append(SmallerSum(transfer.id, rest))
        else:
            decisions += _cancel(ledger, transfer)
    return decisions


def _lose_aggregator(ledger: Ledger, aggregator: Node) -> list[Decision]:
    decisions: list[Decision] = []
    for transfer in ledger.pending_transfers.list_transfers():
        if aggregator in (transfer.source, transfer.target):
            decisions += _cancel(ledger, transfer)
            if isinstance(transfer, ModelTransfer):
                ledger.repeat_requests(transfer.workers)
            elif isinstance(transfer, Push):
                ledger.has_diverged = True
                if transfer.turn is not None and transfer.target.role == ledger.serving_role:
                    decisions += ledger.update_ledger.undo_serving(transfer.id, transfer.updates, len(ledger.servers))
    return decisions


def _lose_servers(ledger: Ledger, server: Node, versions: Sequence[int]) -> list[Decision]:
    if not ledger.replicas:
        raise RankLostError(f"{server.role} {server.index} is lost, and there is no replica to take over")
    ledger.serving_role = "replica"
    ledger.version = max(
        version
        + sum(
            len(push.updates)
            for push in ledger.pending_transfers.list_transfers()
            if _brings_updates(push, Node("replica", shard))
        )
        for shard, version in enumerate(versions)
    )
    # Cancelled before the copies, because a replica whose copy is cancelled applies the turns that follow.
    following = _find_pushes_after_copies(ledger)
    decisions = _cancel_all(ledger, "replica") if following else []
    decisions += _cancel_all(ledger, "server")
    ledger.divergence = Divergence(ledger.rules.momentum)
    ledger.catch_up_turns = {}
    decisions += ledger.update_ledger.take_over()
    for push in following:
        decisions += ledger.update_ledger.undo_serving(push.id, push.updates, len(ledger.servers))
    return decisions


def _find_pushes_after_copies(ledger: Ledger) -> list[Push]:
    """Return the transfers that replicas were to apply after a copy under way.

    Without the copies they have to be planned again. The replicas then have updates that are not in the copies, so
    delays would be larger.
    """
    if not ledger.is_copying:
        return []
    return [
        push
        for push in ledger.pending_transfers.list_transfers()
        if isinstance(push, Push) and push.target.role == "replica"
    ]


def _brings_updates(transfer: Transfer, node: Node) -> TypeGuard[Push]:
    """Return whether the transfer brings an update or a sum to this node."""
    return isinstance(transfer, Push) and transfer.target == node


def _lose_replicas(ledger: Ledger) -> list[Decision]:
    decisions = _cancel_all(ledger, "replica")
    return [*decisions, *ledger.update_ledger.lose_replicas()]


def _cancel_all(ledger: Ledger, role: Role) -> list[Decision]:
    """Cancel all transfers to or from the nodes of a role, and the arrivals that their sums wait for. For
    ``"server"``, cancel all models too."""
    decisions: list[Decision] = []
    parts: set[int] = set()
    for transfer in reversed(ledger.pending_transfers.list_transfers()):
        theirs = role in (transfer.source.role, transfer.target.role)
        if theirs or transfer.id in parts or (role == "server" and isinstance(transfer, ModelTransfer)):
            decisions += _cancel(ledger, transfer)
            if transfer.source.role == "aggregator":
                parts |= {other for other in transfer.after if ledger.pending_transfers.reaches(other, transfer.source)}
            if isinstance(transfer, ModelTransfer):
                ledger.repeat_requests(transfer.workers)
    return _correct_counts(ledger, decisions)


def _cancel(ledger: Ledger, transfer: Transfer) -> list[Decision]:
    ledger.pending_transfers.remove(transfer.id)
    decisions: list[Decision] = [Cancellation(transfer.id)]
    if isinstance(transfer, Push) and transfer.turn is not None:
        decisions.append(SkippedTurn(transfer.target, transfer.turn, len(transfer.updates)))
        if transfer.target.role == "replica":
            ledger.catch_up_turns.pop(transfer.turn, None)
    elif isinstance(transfer, StateCopy):
        ledger.update_ledger.undo_copy(transfer.id)
    return decisions


def _correct_counts(ledger: Ledger, decisions: list[Decision]) -> list[Decision]:
    """Return the decisions with corrected counts of skipped updates.

    If only some servers skip a turn, its updates count there, because the other servers have them. If all servers
    skip it, nobody has the updates, and the version falls. Replicas do not count them, because they get a copy.
    """
    skipping = Counter(d.turn for d in decisions if isinstance(d, SkippedTurn) and d.target.role == ledger.serving_role)
    counted: list[Decision] = []
    for decision in decisions:
        if isinstance(decision, SkippedTurn):
            if decision.target.role != ledger.serving_role:
                decision = replace(decision, count=0)
            elif skipping[decision.turn] == len(ledger.servers):
                if decision.target.index == 0:
                    ledger.version -= decision.count
                decision = replace(decision, count=0)
        counted.append(decision)
    # A skipped turn lets the next ones be applied, so cancellations come first.
    return sorted(counted, key=lambda decision: isinstance(decision, SkippedTurn))
