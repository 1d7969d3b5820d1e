"""Residual network: what each host's NIC can still carry, each way, as piecewise constant functions of time. Transfers
under way reserve their part of it.

A transfer between two hosts uses two links: the sender's uplink and the receiver's downlink. The network's core is
assumed to have no congestion. A transfer within a host uses no link. :meth:`ResidualNetwork.fill` is the paper's t_en
with its schedule: at every time it uses all that is left on the narrower link. :meth:`ResidualNetwork.reserve` is the
paper's NetUp (MLfabric, Fig. 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.messages import NewSchedule, Node, Piece, Transfer

#: Begin and end in seconds, rate in bytes per second.
Span = tuple[float, float, float]
#: Spans in the order of time, without overlap, with rates above 0. The last one of a link never ends.
Spans = tuple[Span, ...]

#: Minimum rate of a link in bytes per second, so that every transfer ends.
LEAST_RATE = 1.0
#: Share of a link's rate below which the rest counts as zero, to absorb rounding in sums of floats.
_ROUNDING = 1e-9
#: Minimum relative change of a transfer's remaining time for which it gets a new schedule.
_WORTHWHILE = 0.01


def make_idle_link(rate: float, since: float = 0.0) -> Spans:
    """Return an idle link."""
    return ((since, math.inf, max(rate, LEAST_RATE)),)


class ResidualNetwork:
    """Unreserved bandwidth of every host's links. Copies are cheap: they share the functions, which are never changed
    in place.

    :param links: host h's uplink at index 2 h and its downlink at 2 h + 1.
    """

    __slots__ = ("links",)

    def __init__(self, links: Sequence[Spans]) -> None:
        self.links = list(links)

    @classmethod
    def from_rates(cls, rates: Iterable[tuple[float, float]], since: float = 0.0) -> ResidualNetwork:
        """Return the network of idle links, from each host's rates out and in, bytes per second."""
        return cls([make_idle_link(rate, since) for pair in rates for rate in pair])

    def copy(self) -> ResidualNetwork:
        return ResidualNetwork(self.links)

    def mirrored(self) -> ResidualNetwork:
        """Return the network with every direction reversed."""
        return ResidualNetwork([self.links[index ^ 1] for index in range(len(self.links))])

    def fill(self, source: int, target: int, size: float, ready: float) -> Spans:
        """Return the fastest schedule for ``size`` bytes between two hosts from time ``ready`` on. Empty within a
        host."""
        if source == target or size <= 0:
            return ()
        return fill(self.links[2 * source], self.links[2 * target + 1], size, ready)

    def reserve(self, source: int, target: int, schedule: Spans) -> None:
        """Subtract a schedule from both links that it uses."""
        if schedule:
            self.links[2 * source] = subtract(self.links[2 * source], schedule)
            self.links[2 * target + 1] = subtract(self.links[2 * target + 1], schedule)


def get_end(schedule: Spans, ready: float) -> float:
    """Return when a transfer is complete; ``ready`` if its schedule is empty."""
    return schedule[-1][1] if schedule else ready


def get_reserved_until(link: Spans) -> float:
    """Return the time until which more than half of the link is reserved."""
    whole = link[-1][2]
    return next(begin for begin, _, rate in link if 2 * rate >= whole)


def fill(out: Spans, into: Spans, size: float, ready: float) -> Spans:
    """Return the schedule that uses all that both links can carry from ``ready`` on, until ``size`` bytes have
    passed."""
    found: list[Span] = []
    first = second = 0
    begin, stop, rate = out[0]
    begin2, stop2, rate2 = into[0]
    while True:
        since = begin if begin > begin2 else begin2
        if since < ready:
            since = ready
        until = stop if stop < stop2 else stop2
        if since < until:
            least = rate if rate < rate2 else rate2
            carried = least * (until - since)
            if carried >= size:
                found.append((since, since + size / least, least))
                return tuple(found)
            found.append((since, until, least))
            size -= carried
        if stop <= stop2:
            first += 1
            begin, stop, rate = out[first]
        else:
            second += 1
            begin2, stop2, rate2 = into[second]


def subtract(link: Spans, schedule: Spans) -> Spans:
    """Return a link's residual after a schedule that fits into it."""
    if len(link) == 1 and len(schedule) == 1:
        begin, stop, rate = link[0]
        since, until, taken = schedule[0]
        rest = rate - taken
        after = (until, stop, rate)
        if rest <= rate * _ROUNDING:
            return ((begin, since, rate), after) if since > begin else (after,)
        used = (since, until, rest)
        return ((begin, since, rate), used, after) if since > begin else (used, after)
    left: list[Span] = []
    pieces = iter(schedule)
    since, until, taken = next(pieces)
    for number, (begin, stop, rate) in enumerate(link):
        while begin < stop:
            while until <= begin:
                piece = next(pieces, None)
                if piece is None:
                    return (*left, (begin, stop, rate), *link[number + 1 :])
                since, until, taken = piece
            if since > begin:
                part = since if since < stop else stop
                left.append((begin, part, rate))
            else:
                part = until if until < stop else stop
                rest = rate - taken
                if rest > rate * _ROUNDING:
                    left.append((begin, part, rest))
            begin = part
    return tuple(left)


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

    def list_all(self) -> list[Transfer]:
        return [pending.transfer for pending in self._transfers.values()]

    def reaches(self, transfer: int, target: Node) -> bool:
        """Return whether this transfer is under way, or waiting, to this node."""
        return transfer in self._transfers and self._transfers[transfer].transfer.target == target

    def get_planned_end(self, transfer: int) -> float:
        """Return the transfer's planned end in seconds; minus infinity within a host."""
        return get_end(self._transfers[transfer].schedule, -math.inf)

    def add(self, transfer: Transfer, source: int, target: int) -> None:
        """Add a transfer between the hosts ``source`` and ``target``."""
        self._transfers[transfer.id] = _PendingTransfer(transfer, source, target, transfer.schedule)

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
