"""Overtaking: move slow updates under way behind faster ones, in the order in which the servers apply them.

Servers apply updates in the order of decisions, because otherwise nobody could predict an update's delay. So an
update on a slow link would hold up all that arrive sooner. If its delay bound allows it, it gets a turn behind them,
whether they are under way or new. Until all servers know of the change, some may apply the slow update in its old
turn. So all other updates have to keep their delay bounds behind it, too.

With replicas nothing is overtaken, because the replicas' schedules rely on the old order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.fabric.core.aggregate import Group
from sparkdl_comm.fabric.core.batch import BatchPlan, BatchState
from sparkdl_comm.fabric.core.decisions import NewTurn, Push, SkippedTurn
from sparkdl_comm.fabric.core.ledger import Ledger

#: Least seconds by which an overtaken update must be later. Smaller gains are not worth the messages.
_WORTHWHILE = 0.01


@dataclass(frozen=True)
class PendingTurn:
    """Pushes of one turn, one for each server that has not applied it. ``end``: planned arrival of the last one,
    seconds."""

    turn: int
    pushes: list[Push]
    end: float

    @property
    def updates(self) -> tuple[int, ...]:
        """Ids of the updates in the pushes."""
        return self.pushes[0].updates


def list_pending_turns(ledger: Ledger) -> list[PendingTurn]:
    """Return everything under way to the servers, in the order of turns."""
    turns: dict[int, list[Push]] = {}
    for transfer in ledger.pending_transfers.list_transfers():
        if isinstance(transfer, Push) and transfer.turn is not None and transfer.target.role == ledger.serving_role:
            turns.setdefault(transfer.turn, []).append(transfer)
    return [
        PendingTurn(turn, pushes, max(ledger.pending_transfers.get_planned_end(push.id) for push in pushes))
        for turn, pushes in sorted(turns.items())
    ]


def overtake(
    ledger: Ledger, make_plan: Callable[[BatchState], BatchPlan], now: float
) -> tuple[BatchPlan, list[PendingTurn]]:
    """Plan a batch. Return it with the pushes under way that move behind some of its groups, in the order of their
    ends.

    :param make_plan: function that plans the batch from the state that earlier batches lead to.
    """
    queue = list_pending_turns(ledger)
    moved = [] if ledger.replicas else queue
    while True:
        busy = max([now, *(group.end for group in queue if group not in moved)])
        batch = make_plan(replace(ledger.state, servers_busy=busy))
        found = find_blocking_turns(ledger, queue, batch.replication.server_groups) if moved else []
        if len(found) >= len(moved):
            return batch, found
        moved = found


def find_blocking_turns(ledger: Ledger, queue: Sequence[PendingTurn], new: Sequence[Group]) -> list[PendingTurn]:
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
        stuck = [group.end for group in moved if not _can_move(ledger, group, new)]
        if not stuck:
            return moved
        ends = [end for end in ends if end > max(stuck)]
    return []


def move_to_last_turn(ledger: Ledger, group: PendingTurn) -> list[NewTurn]:
    """Move the pushes to a turn after all others so far, and return the decisions that tell the servers."""
    turn = ledger.turns[ledger.serving_role]
    ledger.turns[ledger.serving_role] += 1
    for push in group.pushes:
        ledger.pending_transfers.replace(replace(push, turn=turn))
    return [NewTurn(push.id, turn) for push in group.pushes]


def skip_old_turns(moved: Sequence[PendingTurn]) -> list[SkippedTurn]:
    """Return the decisions that tell each server to skip the turns from which pushes have moved.

    Send these decisions after those of :func:`move_to_last_turn`: a push that waits for a skipped turn may have moved
    as well.
    """
    return [SkippedTurn(push.target, group.turn) for group in moved for push in group.pushes]


def _can_move(ledger: Ledger, group: PendingTurn, new: Sequence[Group]) -> bool:
    """Return whether the pushes may move: no server is known to have applied them, and they keep their delay bound.

    The bound must hold behind all other updates under way, in any order of application, and behind the groups of
    ``new`` that end before.
    """
    if len(group.pushes) < len(ledger.servers):
        return False
    applied = ledger.version - len(group.updates)
    applied += sum(len(one.members) for one in new if one.done <= group.end)
    for place, number in enumerate(group.updates):
        entry = ledger.update_ledger.by_id.get(number)
        if entry is None:  # its worker was lost
            return False
        deadline = ledger.rules.deadline(entry.update.base, applied + place)
        if deadline is not None and deadline < 1:
            return False
    return True
