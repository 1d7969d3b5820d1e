"""Transfers that were decided on and have not ended, and the residual network after them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.decisions import NewSchedule, Piece, Transfer
from sparkdl_comm.fabric.core.nodes import Node
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork, Spans, get_end

#: Least relative change of a transfer's remaining time for which it gets a new schedule.
_WORTHWHILE = 0.01


@dataclass
class _PendingTransfer:
    """Transfer that has not ended, with its hosts and schedule.

    - ``bytes_left``: bytes left at the time ``since``, or None to assume that the schedule is kept.
    """

    transfer: Transfer
    source: int
    target: int
    schedule: Spans
    bytes_left: float | None = None
    since: float = 0.0

    def count_bytes_left(self, now: float) -> float:
        """Return the bytes still to be sent."""
        if self.bytes_left is None:
            return sum(rate * (stop - max(begin, now)) for begin, stop, rate in self.schedule if stop > now)
        sent = sum(
            rate * (min(stop, now) - max(begin, self.since))
            for begin, stop, rate in self.schedule
            if stop > self.since and begin < now
        )
        return max(0.0, self.bytes_left - sent)


class PendingTransfers:
    """All transfers under way or waiting for others, by id, in the order of their decisions."""

    def __init__(self) -> None:
        self._transfers: dict[int, _PendingTransfer] = {}
        self._is_stale = False

    def __contains__(self, transfer: int) -> bool:
        return transfer in self._transfers

    def list_transfers(self) -> list[Transfer]:
        return [pending.transfer for pending in self._transfers.values()]

    def reaches(self, transfer: int, target: Node) -> bool:
        """Return whether this transfer is under way, or waiting, to this node."""
        return transfer in self._transfers and self._transfers[transfer].transfer.target == target

    def get_planned_end(self, transfer: int) -> float:
        """Return the transfer's planned end in seconds; minus infinity within a host."""
        return get_end(self._transfers[transfer].schedule, -math.inf)

    def add(self, transfer: Transfer, source: int, target: int) -> None:
        """Add a transfer between the hosts ``source`` and ``target``."""
        schedule = tuple((piece.start, piece.end, piece.rate) for piece in transfer.schedule)
        self._transfers[transfer.id] = _PendingTransfer(transfer, source, target, schedule)

    def replace(self, transfer: Transfer) -> None:
        """Change what a transfer under way carries."""
        self._transfers[transfer.id].transfer = transfer

    def remove(self, transfer: int) -> Transfer:
        """Remove and return a transfer that has ended or was cancelled."""
        return self._transfers.pop(transfer).transfer

    def record_progress(self, transfer: int, sent: int, now: float) -> None:
        """Record that ``sent`` bytes of a transfer have been sent."""
        pending = self._transfers[transfer]
        pending.bytes_left, pending.since = max(0, pending.transfer.bytes - sent), now
        self._is_stale = True

    def mark_stale(self) -> None:
        """Note that the links' rates have changed."""
        self._is_stale = True

    def repace(self, rates: Sequence[tuple[float, float]], now: float) -> list[NewSchedule]:
        """Return new schedules, in the order of decisions, if rates have changed or transfers differ from their
        plans."""
        if not self._is_stale and not any(self._is_delayed(pending, now) for pending in self._transfers.values()):
            return []
        network = ResidualNetwork.from_rates(rates, now)
        ends: dict[int, float] = {}
        changed = []
        for number, pending in self._transfers.items():
            waits = [ends[other] for other in pending.transfer.after if other in self._transfers]
            ready = max([now, *waits])
            rest = float(pending.transfer.bytes) if waits else pending.count_bytes_left(now)
            schedule = network.fill(pending.source, pending.target, rest, ready)
            planned = get_end(pending.schedule, now)
            if abs(get_end(schedule, now) - planned) > _WORTHWHILE * max(planned - now, 0.0):
                changed.append(NewSchedule(number, to_pieces(schedule)))
                pending.schedule = schedule
                pending.bytes_left, pending.since = rest, now
            else:
                schedule = pending.schedule
            network.reserve(pending.source, pending.target, _trim_before(schedule, now))
            ends[number] = get_end(schedule, ready)
        self._is_stale = False
        return changed

    def compute_residual(self, rates: Sequence[tuple[float, float]], now: float) -> ResidualNetwork:
        """Return the network left over by all transfers."""
        network = ResidualNetwork.from_rates(rates, now)
        for pending in self._transfers.values():
            network.reserve(pending.source, pending.target, _trim_before(pending.schedule, now))
        return network

    def _is_delayed(self, pending: _PendingTransfer, now: float) -> bool:
        """Return whether the transfer should have begun but still waits for another one."""
        begun = bool(pending.schedule) and pending.schedule[0][0] < now
        return begun and any(other in self._transfers for other in pending.transfer.after)


def to_pieces(schedule: Iterable[tuple[float, float, float]]) -> tuple[Piece, ...]:
    """Return a schedule in the form that decisions have."""
    return tuple(Piece(*span) for span in schedule)


def _trim_before(schedule: Spans, now: float) -> Spans:
    return tuple((max(begin, now), stop, rate) for begin, stop, rate in schedule if stop > now)
