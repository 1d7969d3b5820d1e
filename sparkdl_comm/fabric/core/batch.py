"""Planning of one batch: order the ready updates, group them, and replicate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.aggregate import Group, aggregate, deliver
from sparkdl_comm.fabric.core.bandwidth import Residual
from sparkdl_comm.fabric.core.divergence import Divergence
from sparkdl_comm.fabric.core.held import Held
from sparkdl_comm.fabric.core.order import Job, order
from sparkdl_comm.fabric.core.replicate import Bounded, Sides, bounded
from sparkdl_comm.fabric.core.rules import Rules


@dataclass(frozen=True)
class Batch:
    """Plan of a batch.

    - ``updates``: ids of the updates punted from earlier batches, then of new ones. Groups refer to their indices.
    - ``late``: ids of updates that cannot keep their deadlines.
    - ``apart``: ids of updates that exceed the divergence bound on their own.
    - ``scales``: step sizes by id.

    New updates that are neither served nor in ``late`` or ``apart`` wait for the next batch.
    """

    updates: Sequence[int]
    bounded: Bounded
    late: Sequence[int]
    apart: Sequence[int]
    scales: dict[int, float]


@dataclass(frozen=True)
class State:
    """State that earlier batches lead to.

    - ``version``: the servers' version once all decisions are applied.
    - ``divergence``: divergence of the replicas at that point.
    - ``servers_busy``, ``replicas_busy``: time until which servers and replicas are busy, seconds.
    - ``coming``, ``under_way``: see :func:`bounded`.
    """

    version: int
    divergence: Divergence
    servers_busy: float
    replicas_busy: float
    coming: Sequence[Divergence] = ()
    under_way: int = 0


def plan(
    held: Held, hosts: Sequence[int], network: Residual, sides: Sides, rules: Rules, state: State, now: float
) -> Batch:
    """Plan everything that is pending or punted.

    :param hosts: host of each worker.
    :param network: residual network; it is not changed.
    """
    ids = [*held.punted, *held.pending]
    first = len(held.punted)
    jobs = []
    for number in ids:
        update = held.by_id[number].update
        jobs.append(Job(hosts[update.worker], update.sizes, rules.deadline(update.base, state.version)))
    ordered = order(jobs[first:], network, sides.servers, now)
    placed = [first + index for index in ordered.kept]
    scales = {
        ids[index]: rules.step_size(version, version - held.by_id[ids[index]].update.base)
        for version, index in enumerate(placed, state.version + 1)
    }
    left = network.copy()
    following = held.share_without(len(placed))
    groups = aggregate(jobs, placed, left, sides.servers, sides.aggregators, now, state.servers_busy, following)
    late = [ids[first + index] for index in ordered.dropped]
    if not sides.replicas:
        return Batch(ids, Bounded(groups, [], 0, left), late, [], scales)
    norms = [(number, held.by_id[number].update.norm * scales.get(number, held.by_id[number].scale)) for number in ids]

    def kept_near(planned: list[Group]) -> Bounded:
        punted = range(first)
        return bounded(
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
            state.coming,
            state.under_way,
            state.servers_busy,
        )

    found = kept_near(groups)
    apart: list[int] = []
    if groups and not found.served and not state.coming:
        alone = Group([placed[0]], ready=now)
        deliver(alone, jobs, network.copy(), sides.servers, sides.aggregators, max(now, state.servers_busy))
        found = kept_near([alone])
        if not found.served:
            apart.append(ids[placed[0]])
    return Batch(ids, found, late, apart, scales)
