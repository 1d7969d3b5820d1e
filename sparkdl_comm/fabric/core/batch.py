"""Planning of one batch: order the ready updates, group them, and replicate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.aggregate import Group, aggregate, deliver
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.order import Job, order
from sparkdl_comm.fabric.core.replicate import ReplicationPlan, SideHosts, plan_replication
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork
from sparkdl_comm.fabric.core.rules import Rules
from sparkdl_comm.fabric.core.update_ledger import UpdateLedger


@dataclass(frozen=True)
class BatchPlan:
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


@dataclass(frozen=True)
class BatchState:
    """State that earlier batches lead to.

    - ``version``: the servers' version once all decisions are applied.
    - ``divergence``: divergence of the replicas at that point.
    - ``servers_busy``, ``replicas_busy``: time until which servers and replicas are busy, seconds.
    - ``catch_up_states``, ``steps_under_way``: see :func:`plan_replication`.
    """

    version: int
    divergence: Divergence
    servers_busy: float
    replicas_busy: float
    catch_up_states: Sequence[Divergence] = ()
    steps_under_way: int = 0


def plan_batch(
    update_ledger: UpdateLedger,
    hosts: Sequence[int],
    network: ResidualNetwork,
    sides: SideHosts,
    rules: Rules,
    state: BatchState,
    now: float,
) -> BatchPlan:
    """Plan everything that is pending or punted.

    :param hosts: host of each worker.
    :param network: residual network; it is not changed.
    """
    ids = [*update_ledger.punted, *update_ledger.pending]
    first = len(update_ledger.punted)
    jobs = []
    for number in ids:
        update = update_ledger.by_id[number].update
        jobs.append(Job(hosts[update.worker], update.sizes, rules.deadline(update.base, state.version)))
    ordered = order(jobs[first:], network, sides.servers, now)
    placed = [first + index for index in ordered.kept]
    scales = {
        ids[index]: rules.step_size(version, version - update_ledger.by_id[ids[index]].update.base)
        for version, index in enumerate(placed, state.version + 1)
    }
    residual = network.copy()
    link_weight = update_ledger.get_remaining_share(len(placed))
    groups = aggregate(jobs, placed, residual, sides.servers, sides.aggregators, now, state.servers_busy, link_weight)
    overdue = [ids[first + index] for index in ordered.dropped]
    if not sides.replicas:
        return BatchPlan(ids, ReplicationPlan(groups, [], 0, residual), overdue, [], scales)
    norms = [
        (number, update_ledger.by_id[number].update.norm * scales.get(number, update_ledger.by_id[number].scale))
        for number in ids
    ]

    def replicate(planned: list[Group]) -> ReplicationPlan:
        punted = range(first)
        return plan_replication(
            jobs,
            norms,
            punted,
            planned,
            network,
            sides,
            state.divergence,
            rules.divergence,
            now,
            state.replicas_busy,
            state.catch_up_states,
            state.steps_under_way,
            state.servers_busy,
        )

    found = replicate(groups)
    over_limit: list[int] = []
    if groups and not found.server_groups and not state.catch_up_states:
        alone = Group([placed[0]], ready=now)
        deliver(alone, jobs, network.copy(), sides.servers, sides.aggregators, max(now, state.servers_busy))
        found = replicate([alone])
        if not found.server_groups:
            over_limit.append(ids[placed[0]])
    return BatchPlan(ids, found, overdue, over_limit, scales)
