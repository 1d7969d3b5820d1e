"""Which transfers that are under way to the servers a new batch need not wait for.

Servers apply updates in the order in which they were decided on, or else nobody could say what delay an update will have.
So one that is sent over a slow link would hold up all later batches. Where the delay bound allows it, it is given a place
behind the new batch instead. Until a server hears of that, it may have applied the slow one, and another server not: so the
new ones keep their delay bounds behind it, too.

With replicas nothing is overtaken: they have been promised the old order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.fabric.core.batch import Batch, State
from sparkdl_comm.fabric.core.decisions import Decision, Push, Reordered, Skipped
from sparkdl_comm.fabric.core.ledger import Ledger


@dataclass(frozen=True)
class Waiting:
    """The pushes of one turn, one to each server that has not applied it yet; ``end``: when the last is there, seconds."""

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
        Waiting(pushes, max(ledger.flight.planned(push.id) for push in pushes)) for _, pushes in sorted(turns.items())
    ]


def overtake(ledger: Ledger, planned: Callable[[State], Batch], now: float) -> tuple[Batch, list[Waiting]]:
    """A batch, and those that are under way that it overtakes.

    :param planned: the batch, if this is what earlier ones have led to.
    """
    queue = waiting(ledger)
    state = replace(ledger.state, servers_busy=max([now, *(group.end for group in queue)]))
    if ledger.replicas or not queue:
        return planned(state), []
    free = planned(replace(state, servers_busy=now)).bounded.served
    count = sum(len(group.members) for group in free)
    late = [group for group in queue if free and group.end > free[-1].done]
    late = _movable(ledger, queue, late, count)
    if late:
        busy = max([now, *(group.end for group in queue if group not in late)])
        batch = planned(replace(state, servers_busy=busy))
        count = sum(len(group.members) for group in batch.bounded.served)
        if _movable(ledger, queue, late, count) == late:
            return batch, late
    return planned(state), []


def move_behind(ledger: Ledger, late: Sequence[Waiting]) -> list[Decision]:
    """Gives turns after all others to what was overtaken."""
    decisions: list[Decision] = []
    for group in late:
        turn = ledger.turns[ledger.serving]
        ledger.turns[ledger.serving] += 1
        for push in group.pushes:
            if push.turn is not None:
                decisions += [Reordered(push.id, turn), Skipped(push.target, push.turn)]
            ledger.flight.replace(replace(push, turn=turn))
    return decisions


def _movable(ledger: Ledger, queue: Sequence[Waiting], late: Sequence[Waiting], count: int) -> list[Waiting]:
    """Those of ``late`` that keep their delay bounds behind the others of ``queue`` and ``count`` new updates."""
    chosen = list(late)
    while True:
        moved = [group for group in queue if group in chosen]
        stuck = _stuck(ledger, queue, moved, count)
        if stuck is None:
            return moved
        chosen.remove(stuck)


def _stuck(ledger: Ledger, queue: Sequence[Waiting], moved: Sequence[Waiting], count: int) -> Waiting | None:
    """The first that could not be applied so late."""
    applied = ledger.version - sum(len(group.updates) for group in moved)
    for group in moved:
        applied += count
        count = 0
        for number in group.updates:
            holding = ledger.held.by_id.get(number)
            if holding is None:  # its worker was lost
                return group
            deadline = ledger.rules.deadline(holding.update.base, applied)
            if deadline is not None and deadline < 1:
                return group
            applied += 1
    return None
