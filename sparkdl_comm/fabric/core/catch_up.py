"""Catching up: send the replica its punted updates as late as the divergence bound allows, in few and large sums.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 5.3:
with a larger bound more updates are punted and then summed. Punted updates are sent when half of the bound is used
up. The other half lets the servers go on meanwhile without waiting. They are also sent when workers would have to
keep too many updates.

Nobody knows when these transfers will arrive. So every update of the servers has to keep the bound for any time of
arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from sparkdl_comm.fabric.core.aggregate import aggregate, reserve
from sparkdl_comm.fabric.core.decisions import Decision, Push
from sparkdl_comm.fabric.core.ledger import CatchUpTurn, Ledger
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork
from sparkdl_comm.fabric.core.transfers import make_deliveries

#: Share of the divergence bound at which punted updates are sent.
_SEND_SHARE = 0.5
#: Most punted updates per worker before they are sent.
_MOST_KEPT = 8


def catch_up(ledger: Ledger, network: ResidualNetwork, now: float) -> list[Decision]:
    """Return the transfers of punted updates that the servers have applied, if it is time to send them.

    Subtract the transfers' bandwidth from ``network``.
    """
    update_ledger = ledger.update_ledger
    if ledger.catch_up_turns or ledger.is_copying or ledger.has_diverged or not _is_time(ledger):
        return []
    numbers = list(takewhile(lambda number: update_ledger.by_id[number].is_applied, update_ledger.punted))
    updates = [update_ledger.by_id[number].update for number in numbers]
    jobs = [Job(ledger.roles.workers[update.worker], update.sizes) for update in updates]
    sides = ledger.list_hosts()
    busy = ledger.busy_until["replica"]
    trial = network.copy()
    groups = aggregate(
        jobs, range(len(jobs)), trial, sides.replicas, sides.replica_aggregators, now, busy, link_weight=1.0
    )
    decisions: list[Decision] = []
    aggregators = ledger.list_aggregators("replica")
    for group in groups[: _count_allowed(ledger, [[numbers[index] for index in group.members] for group in groups])]:
        reserve(group, jobs, network, sides.replicas, sides.replica_aggregators)
        turn = ledger.turns["replica"]
        made = make_deliveries(ledger, numbers, group, "replica", aggregators, ())
        last = [push for push in made if push.turn is not None]
        ledger.catch_up_turns[turn] = CatchUpTurn(last[0].updates, {push.id for push in last})
        decisions += made
    return decisions


def record_catch_up(ledger: Ledger, ended: Push) -> None:
    """Record that a transfer to a replica has ended. After the last transfer of its turn, count the turn's updates as
    replicated."""
    for turn, each in ledger.catch_up_turns.items():
        if ended.id in each.missing:
            each.missing.discard(ended.id)
            if not each.missing:
                del ledger.catch_up_turns[turn]
                ledger.divergence.replicate(ended.updates)
                ledger.divergence.prune()
            return


def _count_allowed(ledger: Ledger, steps: Sequence[Sequence[int]]) -> int:
    """Return the number of leading steps that the replicas may take, whichever steps under way the servers have
    applied by then."""
    under_way = {push.turn for push in ledger.server_pushes}
    state = ledger.divergence.copy()
    for number, updates in enumerate(steps):
        state.replicate(updates)
        if any(state.bound(behind) > ledger.rules.divergence for behind in range(len(under_way) + 1)):
            return number
    return len(steps)


def _is_time(ledger: Ledger) -> bool:
    limit, punted = ledger.rules.divergence, len(ledger.update_ledger.punted)
    if limit == math.inf:
        return False
    most = _MOST_KEPT * (len(ledger.roles.workers) - len(ledger.update_ledger.lost_workers))
    return punted >= most or ledger.divergence.bound() > _SEND_SHARE * limit
