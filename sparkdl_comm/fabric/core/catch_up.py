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
from sparkdl_comm.fabric.core.bandwidth import Residual
from sparkdl_comm.fabric.core.decisions import Decision, Push
from sparkdl_comm.fabric.core.ledger import CatchingUp, Ledger
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.transfers import make_deliveries

#: Share of the divergence bound at which punted updates are sent.
_PART = 0.5
#: Most punted updates per worker before they are sent.
_KEPT = 8


def catch_up(ledger: Ledger, network: Residual, now: float) -> list[Decision]:
    """Return the transfers of punted updates that the servers have applied, if it is time to send them.

    Subtract the transfers' bandwidth from ``network``.
    """
    held = ledger.held
    if ledger.catching_up or ledger.is_copying or ledger.apart or not _is_time(ledger):
        return []
    numbers = list(takewhile(lambda number: held.by_id[number].applied, held.punted))
    updates = [held.by_id[number].update for number in numbers]
    jobs = [Job(ledger.roles.workers[update.worker], update.sizes) for update in updates]
    sides = ledger.sides()
    busy = ledger.busy["replica"]
    trial = network.copy()
    groups = aggregate(
        jobs, range(len(jobs)), trial, sides.replicas, sides.replica_aggregators, now, busy, following=1.0
    )
    decisions: list[Decision] = []
    relays = ledger.relays("replica")
    for group in groups[: _allowed(ledger, [[numbers[index] for index in group.members] for group in groups])]:
        reserve(group, jobs, network, sides.replicas, sides.replica_aggregators)
        turn = ledger.turns["replica"]
        made = make_deliveries(ledger, numbers, group, "replica", relays, ())
        last = [push for push in made if push.turn is not None]
        ledger.catching_up[turn] = CatchingUp(last[0].updates, {push.id for push in last})
        decisions += made
    return decisions


def caught_up(ledger: Ledger, ended: Push) -> None:
    """Record that a transfer to a replica has ended. After the last transfer of its turn, count the turn's updates as
    replicated."""
    for turn, each in ledger.catching_up.items():
        if ended.id in each.missing:
            each.missing.discard(ended.id)
            if not each.missing:
                del ledger.catching_up[turn]
                ledger.divergence.replicate(ended.updates)
                ledger.divergence.prune()
            return


def _allowed(ledger: Ledger, steps: Sequence[Sequence[int]]) -> int:
    """Return the number of leading steps that the replicas may take, whichever steps under way the servers have
    applied by then."""
    under_way = {push.turn for push in ledger.to_servers}
    state = ledger.divergence.copy()
    for number, updates in enumerate(steps):
        state.replicate(updates)
        if any(state.bound(behind) > ledger.rules.divergence for behind in range(len(under_way) + 1)):
            return number
    return len(steps)


def _is_time(ledger: Ledger) -> bool:
    limit, punted = ledger.rules.divergence, len(ledger.held.punted)
    if limit == math.inf:
        return False
    most = _KEPT * (len(ledger.roles.workers) - len(ledger.held.lost))
    return punted >= most or ledger.divergence.bound() > _PART * limit
