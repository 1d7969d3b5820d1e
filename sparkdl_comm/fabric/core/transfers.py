"""Decisions of a planned batch: its transfers with their ids, recorded in the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl_comm.fabric.core.aggregate import Group
from sparkdl_comm.fabric.core.batch import BatchPlan
from sparkdl_comm.fabric.core.decisions import Decision, ModelTransfer, Push
from sparkdl_comm.fabric.core.distribute import distribute
from sparkdl_comm.fabric.core.ledger import Ledger
from sparkdl_comm.fabric.core.nodes import Node, Role
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.overtake import PendingTurn, move_to_last_turn
from sparkdl_comm.fabric.core.pending_transfers import to_pieces
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork


def make_pushes(ledger: Ledger, batch: BatchPlan, overtaken: Sequence[PendingTurn]) -> list[Decision]:
    """Return the decisions for a planned batch of updates, and record them in the ledger.

    :param overtaken: groups already under way, in the order of their ends, that get new turns among the batch's groups.
    """
    held, served, replicated = ledger.update_ledger, batch.replication.server_groups, batch.replication.replica_groups
    decisions: list[Decision] = [held.drop(number, "deadline") for number in batch.overdue]
    decisions += [held.drop(number, "divergence") for number in batch.over_limit]
    for number, scale in batch.scales.items():
        if number in held.by_id:
            held.by_id[number].scale = scale
    awaited = batch.replication.awaited_count
    aggregators = ledger.list_aggregators(ledger.serving_role)
    remaining = list(overtaken)
    earlier_pushes = [push.id for push in ledger.server_pushes] if batch.replication.needs_servers_first else []
    for group in served[:-1] if awaited else served:
        while remaining and remaining[0].end < group.done:
            decisions += move_to_last_turn(ledger, remaining.pop(0))
        decisions += make_deliveries(ledger, batch.updates, group, ledger.serving_role, aggregators, ())
    for moved in remaining:
        decisions += move_to_last_turn(ledger, moved)
    replica_transfers: list[int] = []
    for number, group in enumerate(replicated):
        pushes = make_deliveries(
            ledger, batch.updates, group, "replica", ledger.list_aggregators("replica"), earlier_pushes
        )
        ledger.divergence.replicate([batch.updates[index] for index in group.members])
        decisions += pushes
        if number < awaited:
            replica_transfers += [push.id for push in pushes if push.turn is not None]
    if awaited:
        decisions += make_deliveries(
            ledger, batch.updates, served[-1], ledger.serving_role, aggregators, replica_transfers
        )
    ledger.divergence.prune()
    return decisions


def make_models(ledger: Ledger, network: ResidualNetwork, batch: int, now: float) -> list[Decision]:
    """Return the transfers that answer all requests that may be answered now, and reserve them in ``network``."""
    sizes, asking = ledger.sizes, ledger.answerable_workers
    if not asking:
        return []
    ledger.requests = [request for request in ledger.requests if request.worker not in asking]
    aggregators = ledger.list_aggregators(ledger.serving_role)
    jobs = [Job(ledger.roles.workers[worker], sizes) for worker in asking]
    distributors = [ledger.roles.host(Node("aggregator", number)) for number in aggregators]
    link_weight = ledger.update_ledger.get_remaining_share(len(asking))
    branches = distribute(jobs, network, ledger.servers, distributors, now, link_weight)
    decisions: list[Decision] = []
    for branch in branches:
        workers = tuple(asking[index] for index in branch.members)
        receiver = Node("worker", workers[0])
        if branch.distributor is not None:
            receiver = Node("aggregator", aggregators[branch.distributor])
        transfers = [
            ModelTransfer(
                id=next(ledger.ids),
                source=Node(ledger.serving_role, shard),
                target=receiver,
                bytes=sizes[shard],
                after=(),
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
                id=next(ledger.ids),
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
            ledger.add_transfer(model)
        decisions += transfers
    return decisions


def make_deliveries(
    ledger: Ledger, updates: Sequence[int], group: Group, role: Role, aggregators: Sequence[int], awaited: Sequence[int]
) -> list[Push]:
    """Return the transfers of one group to the nodes of ``role``, and record them in the ledger.

    :param updates: update ids; the group's members are indices into them.
    :param aggregators: numbers of the aggregators that serve this role.
    :param awaited: transfers that must end before the group is sent to the nodes of ``role``.
    """
    holdings = [ledger.update_ledger.by_id[updates[index]] for index in group.members]
    numbers = [entry.update.id for entry in holdings]
    scales = tuple(entry.scale for entry in holdings)
    source = Node("worker", holdings[0].update.worker)
    gathering: list[Push] = []
    if group.aggregator is not None:
        source = Node("aggregator", aggregators[group.aggregator])
        gathering = [
            Push(
                id=next(ledger.ids),
                source=Node("worker", entry.update.worker),
                target=source,
                bytes=entry.update.bytes,
                after=(),
                schedule=to_pieces(schedule),
                updates=(entry.update.id,),
                scales=(entry.scale,),
                shard=None,
                turn=None,
            )
            for entry, schedule in zip(holdings, group.arrivals, strict=True)
        ]
    after = (*(push.id for push in gathering), *awaited)
    final = [
        Push(
            id=next(ledger.ids),
            source=source,
            target=Node(role, shard),
            bytes=max(entry.update.sizes[shard] for entry in holdings),
            after=after,
            schedule=to_pieces(schedule),
            updates=tuple(numbers),
            scales=scales,
            shard=shard,
            turn=ledger.turns[role],
        )
        for shard, schedule in enumerate(group.deliveries)
    ]
    ids = [push.id for push in final]
    if role == ledger.serving_role:
        ledger.update_ledger.serve(numbers, ids)
        ledger.version += len(numbers)
        if ledger.replicas:
            ledger.divergence.serve(numbers, [entry.norm for entry in holdings])
    else:
        ledger.update_ledger.replicate(numbers, ids)
    ledger.turns[role] += 1
    ledger.busy_until[role] = group.done
    for push in [*gathering, *final]:
        ledger.add_transfer(push)
    return [*gathering, *final]
