"""When the replica gets what was punted: as late, and so in as few and large sums, as the divergence bound allows.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 5.3: with a
large bound more updates are punted, which are then summed. What is punted is sent when half of the bound is used up: the
other half is what the servers may go on by meanwhile, without waiting. It is also sent when workers would have to keep too
many updates for it.

Nobody knows when what is sent will be there, so all updates of the servers have to keep the bound whenever that is.
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
from sparkdl_comm.fabric.core.transfers import deliveries

#: Part of the divergence bound from which on what was punted is sent.
_PART = 0.5
#: Updates, for each worker, that are kept at most before they are sent.
_KEPT = 8


def catch_up(ledger: Ledger, network: Residual, now: float) -> list[Decision]:
    """What was punted, and is in the servers' model, is sent if it is time. Takes what that uses out of ``network``."""
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
        made = deliveries(ledger, numbers, group, "replica", relays, ())
        last = [push for push in made if push.turn is not None]
        ledger.catching_up[turn] = CatchingUp(last[0].updates, {push.id for push in last})
        decisions += made
    return decisions


def caught_up(ledger: Ledger, ended: Push) -> None:
    """A transfer has ended: the replica has applied these updates, if it was one of those, and the last one of its turn."""
    for turn, each in ledger.catching_up.items():
        if ended.id in each.missing:
            each.missing.discard(ended.id)
            if not each.missing:
                del ledger.catching_up[turn]
                ledger.divergence.replicate(ended.updates)
                ledger.divergence.prune()
            return


def _allowed(ledger: Ledger, steps: Sequence[Sequence[int]]) -> int:
    """How many of these steps the replicas may take, however many of those under way to the servers these have applied."""
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
