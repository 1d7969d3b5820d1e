"""In which order the servers apply what is under way to them, and what is decided on now.

Servers apply updates in the order in which they were decided on, or else nobody could say what delay an update will have.
So one that is sent over a slow link would hold up all that come sooner. Where its delay bound allows it, it is given a place
behind these instead, whether they are under way too or new. Until a server hears of that, it may have applied the slow one,
and another server not: so all others keep their delay bounds behind it, too.

With replicas nothing is overtaken: they have been promised the old order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.fabric.core.aggregate import Group
from sparkdl_comm.fabric.core.batch import Batch, State
from sparkdl_comm.fabric.core.decisions import Push, Reordered, Skipped
from sparkdl_comm.fabric.core.ledger import Ledger

#: Seconds by which what is overtaken has to be later: less is not worth the messages.
_WORTHWHILE = 0.01


@dataclass(frozen=True)
class Waiting:
    """The pushes of one turn, one to each server that has not applied it yet; ``end``: when the last is there, seconds."""

    turn: int
    pushes: list[Push]
    end: float

    @property
    def updates(self) -> tuple[int, ...]:
        return self.pushes[0].updates


def waiting(ledger: Ledger) -> list[Waiting]:
    """All that is under way to the servers, in the order of turns."""
    turns: dict[int, list[Push]] = {}
    for transfer in ledger.flight.transfers():
        if isinstance(transfer, Push) and transfer.turn is not None and transfer.target.role == ledger.serving:
            turns.setdefault(transfer.turn, []).append(transfer)
    return [
        Waiting(turn, pushes, max(ledger.flight.planned(push.id) for push in pushes))
        for turn, pushes in sorted(turns.items())
    ]


def overtake(ledger: Ledger, planned: Callable[[State], Batch], now: float) -> tuple[Batch, list[Waiting]]:
    """A batch, and those under way that get new turns among its groups, in the order of their ends.

    :param planned: the batch, if this is what earlier ones have led to.
    """
    queue = waiting(ledger)
    late = [] if ledger.replicas else queue
    while True:
        busy = max([now, *(group.end for group in queue if group not in late)])
        batch = planned(replace(ledger.state, servers_busy=busy))
        found = holding_up(ledger, queue, batch.bounded.served) if late else []
        if len(found) >= len(late):
            return batch, found
        late = found


def holding_up(ledger: Ledger, queue: Sequence[Waiting], new: Sequence[Group]) -> list[Waiting]:
    """Those of the queue that are to be behind others that end before them, of the queue or of ``new``; in the order of their
    ends. None that may not wait, nor any that would come behind such a one."""
    soonest = new[0].done if new else math.inf
    ends = []
    for group in reversed(queue):
        if group.end > soonest + _WORTHWHILE:
            ends.append(group.end)
        soonest = min(soonest, group.end)
    while ends:
        first = min(ends)
        moved = sorted((group for group in queue if group.end >= first), key=lambda group: group.end)
        stuck = [group.end for group in moved if not _may_wait(ledger, group, new)]
        if not stuck:
            return moved
        ends = [end for end in ends if end > max(stuck)]
    return []


def move_behind(ledger: Ledger, group: Waiting) -> list[Reordered]:
    """Gives it a turn after all others so far."""
    turn = ledger.turns[ledger.serving]
    ledger.turns[ledger.serving] += 1
    for push in group.pushes:
        ledger.flight.replace(replace(push, turn=turn))
    return [Reordered(push.id, turn) for push in group.pushes]


def left(moved: Sequence[Waiting]) -> list[Skipped]:
    """The turns that nobody has any more. To be said last: what waits for one of them may have got another turn too."""
    return [Skipped(push.target, group.turn) for group in moved for push in group.pushes]


def _may_wait(ledger: Ledger, group: Waiting, new: Sequence[Group]) -> bool:
    """Whether it keeps its delay bound behind all others that are under way, in whatever order servers have applied them, and
    those of ``new`` that end before it; and no server is known to have applied it."""
    if len(group.pushes) < len(ledger.servers):
        return False
    applied = ledger.version - len(group.updates)
    applied += sum(len(one.members) for one in new if one.done <= group.end)
    for place, number in enumerate(group.updates):
        holding = ledger.held.by_id.get(number)
        if holding is None:  # its worker was lost
            return False
        deadline = ledger.rules.deadline(holding.update.base, applied + place)
        if deadline is not None and deadline < 1:
            return False
    return True
