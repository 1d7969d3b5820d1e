"""Transfers that were decided on and have not ended, and the residual network after them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.bandwidth import Residual, Spans, end
from sparkdl_comm.fabric.core.decisions import Piece, Repaced, Transfer
from sparkdl_comm.fabric.core.roles import Node

#: Least relative change of a transfer's remaining time for which it gets a new schedule.
_WORTHWHILE = 0.01


@dataclass
class _Underway:
    """Transfer that has not ended, with its hosts and schedule.

    - ``left``: bytes left at the time ``since``, or None to assume that the schedule is kept.
    """

    transfer: Transfer
    source: int
    target: int
    schedule: Spans
    left: float | None = None
    since: float = 0.0

    def rest(self, now: float) -> float:
        """Return the bytes still to be sent."""
        if self.left is None:
            return sum(rate * (stop - max(begin, now)) for begin, stop, rate in self.schedule if stop > now)
        sent = sum(
            rate * (min(stop, now) - max(begin, self.since))
            for begin, stop, rate in self.schedule
            if stop > self.since and begin < now
        )
        return max(0.0, self.left - sent)


class Flight:
    """All transfers under way or waiting for others, by id, in the order of their decisions."""

    def __init__(self) -> None:
        self._underway: dict[int, _Underway] = {}
        self._stale = False

    def __contains__(self, transfer: int) -> bool:
        return transfer in self._underway

    def transfers(self) -> list[Transfer]:
        return [flying.transfer for flying in self._underway.values()]

    def reaches(self, transfer: int, target: Node) -> bool:
        """Return whether this transfer is under way, or waiting, to this node."""
        return transfer in self._underway and self._underway[transfer].transfer.target == target

    def planned(self, transfer: int) -> float:
        """Return the transfer's planned end in seconds; minus infinity within a host."""
        return end(self._underway[transfer].schedule, -math.inf)

    def add(self, transfer: Transfer, source: int, target: int) -> None:
        """Add a transfer between the hosts ``source`` and ``target``."""
        schedule = tuple((piece.start, piece.end, piece.rate) for piece in transfer.schedule)
        self._underway[transfer.id] = _Underway(transfer, source, target, schedule)

    def replace(self, transfer: Transfer) -> None:
        """Change what a transfer under way carries."""
        self._underway[transfer.id].transfer = transfer

    def end(self, transfer: int) -> Transfer:
        """Remove and return a transfer that has ended or was cancelled."""
        return self._underway.pop(transfer).transfer

    def progress(self, transfer: int, sent: int, now: float) -> None:
        """Record that ``sent`` bytes of a transfer have been sent."""
        flying = self._underway[transfer]
        flying.left, flying.since = max(0, flying.transfer.bytes - sent), now
        self._stale = True

    def outdate(self) -> None:
        """Note that the links' rates have changed."""
        self._stale = True

    def repace(self, rates: Sequence[tuple[float, float]], now: float) -> list[Repaced]:
        """Return new schedules, in the order of decisions, if rates have changed or transfers differ from their
        plans."""
        if not self._stale and not any(self._held_up(flying, now) for flying in self._underway.values()):
            return []
        network = Residual.of(rates, now)
        ends: dict[int, float] = {}
        changed = []
        for number, flying in self._underway.items():
            waits = [ends[other] for other in flying.transfer.after if other in self._underway]
            ready = max([now, *waits])
            rest = float(flying.transfer.bytes) if waits else flying.rest(now)
            schedule = network.fill(flying.source, flying.target, rest, ready)
            planned = end(flying.schedule, now)
            if abs(end(schedule, now) - planned) > _WORTHWHILE * max(planned - now, 0.0):
                changed.append(Repaced(number, pieces(schedule)))
                flying.schedule = schedule
                flying.left, flying.since = rest, now
            else:
                schedule = flying.schedule
            network.reserve(flying.source, flying.target, _since(schedule, now))
            ends[number] = end(schedule, ready)
        self._stale = False
        return changed

    def residual(self, rates: Sequence[tuple[float, float]], now: float) -> Residual:
        """Return the network left over by all transfers."""
        network = Residual.of(rates, now)
        for flying in self._underway.values():
            network.reserve(flying.source, flying.target, _since(flying.schedule, now))
        return network

    def _held_up(self, flying: _Underway, now: float) -> bool:
        """Return whether the transfer should have begun but still waits for another one."""
        begun = bool(flying.schedule) and flying.schedule[0][0] < now
        return begun and any(other in self._underway for other in flying.transfer.after)


def pieces(schedule: Iterable[tuple[float, float, float]]) -> tuple[Piece, ...]:
    """Return a schedule in the form that decisions have."""
    return tuple(Piece(*span) for span in schedule)


def _since(schedule: Spans, now: float) -> Spans:
    return tuple((max(begin, now), stop, rate) for begin, stop, rate in schedule if stop > now)
