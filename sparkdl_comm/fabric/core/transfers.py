"""Decisions of a planned batch: its transfers with their ids, recorded in the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl_comm.fabric.core.aggregate import Group
from sparkdl_comm.fabric.core.bandwidth import Residual
from sparkdl_comm.fabric.core.batch import Batch
from sparkdl_comm.fabric.core.decisions import Decision, Model, Push
from sparkdl_comm.fabric.core.distribute import distribute
from sparkdl_comm.fabric.core.flight import pieces
from sparkdl_comm.fabric.core.ledger import Ledger
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.overtake import Waiting, move_behind
from sparkdl_comm.fabric.core.roles import Node, Role


def make_pushes(ledger: Ledger, batch: Batch, overtaken: Sequence[Waiting]) -> list[Decision]:
    """Return the decisions for a planned batch of updates, and record them in the ledger.

    :param overtaken: groups already under way, in the order of their ends, that get new turns among the batch's groups.
    """
    held, served, replicated = ledger.held, batch.bounded.served, batch.bounded.replicated
    decisions: list[Decision] = [held.drop(number, "deadline") for number in batch.late]
    decisions += [held.drop(number, "divergence") for number in batch.apart]
    for number, scale in batch.scales.items():
        if number in held.by_id:
            held.by_id[number].scale = scale
    awaited = batch.bounded.awaited
    relays = ledger.relays(ledger.serving)
    remaining = list(overtaken)
    earlier_pushes = [push.id for push in ledger.to_servers] if batch.bounded.follows else []
    for group in served[:-1] if awaited else served:
        while remaining and remaining[0].end < group.done:
            decisions += move_behind(ledger, remaining.pop(0))
        decisions += make_deliveries(ledger, batch.updates, group, ledger.serving, relays, ())
    for moved in remaining:
        decisions += move_behind(ledger, moved)
    replica_transfers: list[int] = []
    for number, group in enumerate(replicated):
        pushes = make_deliveries(ledger, batch.updates, group, "replica", ledger.relays("replica"), earlier_pushes)
        ledger.divergence.replicate([batch.updates[index] for index in group.members])
        decisions += pushes
        if number < awaited:
            replica_transfers += [push.id for push in pushes if push.turn is not None]
    if awaited:
        decisions += make_deliveries(ledger, batch.updates, served[-1], ledger.serving, relays, replica_transfers)
    ledger.divergence.prune()
    return decisions


def make_models(ledger: Ledger, network: Residual, batch: int, now: float) -> list[Decision]:
    """Return the transfers that answer all requests that may be answered now, and reserve them in ``network``."""
    sizes, asking = ledger.sizes, ledger.answerable
    if not asking:
        return []
    ledger.requests = [request for request in ledger.requests if request.worker not in asking]
    relays = ledger.relays(ledger.serving)
    jobs = [Job(ledger.roles.workers[worker], sizes) for worker in asking]
    distributors = [ledger.roles.host(Node("aggregator", number)) for number in relays]
    following = ledger.held.share_without(len(asking))
    branches = distribute(jobs, network, ledger.servers, distributors, now, following)
    decisions: list[Decision] = []
    for branch in branches:
        workers = tuple(asking[index] for index in branch.members)
        receiver = Node("worker", workers[0])
        if branch.distributor is not None:
            receiver = Node("aggregator", relays[branch.distributor])
        transfers = [
            Model(
                id=next(ledger.ids),
                source=Node(ledger.serving, shard),
                target=receiver,
                bytes=sizes[shard],
                after=(),
                schedule=pieces(schedule),
                workers=workers,
                shard=shard,
                batch=batch,
            )
            for shard, schedule in enumerate(branch.arrivals)
        ]
        after = tuple(model.id for model in transfers)
        transfers += [
            Model(
                id=next(ledger.ids),
                source=receiver,
                target=Node("worker", worker),
                bytes=sum(sizes),
                after=after,
                schedule=pieces(schedule),
                workers=(worker,),
                shard=None,
                batch=batch,
            )
            for worker, schedule in zip(workers, branch.onward, strict=False)
        ]
        for model in transfers:
            ledger.launch(model)
        decisions += transfers
    return decisions


def make_deliveries(
    ledger: Ledger, updates: Sequence[int], group: Group, role: Role, relays: Sequence[int], awaited: Sequence[int]
) -> list[Push]:
    """Return the transfers of one group to the nodes of ``role``, and record them in the ledger.

    :param updates: update ids; the group's members are indices into them.
    :param relays: numbers of the aggregators that serve this role.
    :param awaited: transfers that must end before the group is sent to the nodes of ``role``.
    """
    holdings = [ledger.held.by_id[updates[index]] for index in group.members]
    numbers = [holding.update.id for holding in holdings]
    scales = tuple(holding.scale for holding in holdings)
    source = Node("worker", holdings[0].update.worker)
    gathering: list[Push] = []
    if group.aggregator is not None:
        source = Node("aggregator", relays[group.aggregator])
        gathering = [
            Push(
                id=next(ledger.ids),
                source=Node("worker", holding.update.worker),
                target=source,
                bytes=holding.update.bytes,
                after=(),
                schedule=pieces(schedule),
                updates=(holding.update.id,),
                scales=(holding.scale,),
                shard=None,
                turn=None,
            )
            for holding, schedule in zip(holdings, group.arrivals, strict=True)
        ]
    after = (*(push.id for push in gathering), *awaited)
    final = [
        Push(
            id=next(ledger.ids),
            source=source,
            target=Node(role, shard),
            bytes=max(holding.update.sizes[shard] for holding in holdings),
            after=after,
            schedule=pieces(schedule),
            updates=tuple(numbers),
            scales=scales,
            shard=shard,
            turn=ledger.turns[role],
        )
        for shard, schedule in enumerate(group.deliveries)
    ]
    ids = [push.id for push in final]
    if role == ledger.serving:
        ledger.held.serve(numbers, ids)
        ledger.version += len(numbers)
        if ledger.replicas:
            ledger.divergence.serve(numbers, [holding.norm for holding in holdings])
    else:
        ledger.held.replicate(numbers, ids)
    ledger.turns[role] += 1
    ledger.busy[role] = group.done
    for push in [*gathering, *final]:
        ledger.launch(push)
    return [*gathering, *final]
