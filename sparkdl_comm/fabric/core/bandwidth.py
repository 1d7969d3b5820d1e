"""The network that is left: what each host's NIC can still carry, each way, as piecewise constant functions of time.

A transfer from one host to another takes two links, the sender's way out and the receiver's way in; the core of the network is
taken to have no congestion. Between nodes of one host it takes none. :meth:`Residual.fill` is t_en of the paper, with the
schedule that leads to it: all that is left on the narrower of the two links, at every time (Viswanathan and Akella,
"Network-accelerated Distributed Machine Learning Using MLfabric", Fig. 4). :meth:`Residual.reserve` is its NetUp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

#: From, to, bytes per second: times in seconds.
Span = tuple[float, float, float]
#: In the order of time, none overlapping, all rates above 0. The last one of a link never ends.
Spans = tuple[Span, ...]

#: A link is never reported as slower than this, bytes per second: every transfer ends some day.
SLOWEST = 1.0
#: What is left of a link is nothing if it is this part of the link, which is what sums of floats are wrong by.
_ROUNDING = 1e-9


def constant(rate: float, since: float = 0.0) -> Spans:
    """A link of which all is left."""
    return ((since, math.inf, max(rate, SLOWEST)),)


class Residual:
    """What is left of every host's links. Copies are cheap: they share the functions, which are never changed in place.

    :param links: of host h, the way out at 2 h and the way in at 2 h + 1.
    """

    __slots__ = ("links",)

    def __init__(self, links: Sequence[Spans]) -> None:
        self.links = list(links)

    @classmethod
    def of(cls, rates: Iterable[tuple[float, float]], since: float = 0.0) -> Residual:
        """That of idle links, by each host's rates out and in, bytes per second."""
        return cls([constant(rate, since) for pair in rates for rate in pair])

    def copy(self) -> Residual:
        return Residual(self.links)

    def mirrored(self) -> Residual:
        """The network in which everything flows the other way."""
        return Residual([self.links[index ^ 1] for index in range(len(self.links))])

    def fill(self, source: int, target: int, size: float, ready: float) -> Spans:
        """The schedule of ``size`` bytes from host to host if they are there at ``ready``; nothing within a host."""
        if source == target or size <= 0:
            return ()
        return fill(self.links[2 * source], self.links[2 * target + 1], size, ready)

    def reserve(self, source: int, target: int, schedule: Spans) -> None:
        """Takes away what a schedule uses."""
        if schedule:
            self.links[2 * source] = without(self.links[2 * source], schedule)
            self.links[2 * target + 1] = without(self.links[2 * target + 1], schedule)


def end(schedule: Spans, ready: float) -> float:
    """When a transfer is complete that was there at ``ready``."""
    return schedule[-1][1] if schedule else ready


def queueing(link: Spans, size: float, now: float) -> float:
    """By how many seconds what is reserved on a link holds up ``size`` bytes."""
    rate = link[-1][2]
    return fill(constant(rate), link, size, now)[-1][1] - now - size / rate if size > 0 else 0.0


def fill(out: Spans, into: Spans, size: float, ready: float) -> Spans:
    """The most of both links, from ``ready`` until ``size`` bytes have passed."""
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


def without(link: Spans, schedule: Spans) -> Spans:
    """What is left of a link if a schedule, which it can carry, is taken away."""
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
    for begin, stop, rate in link:
        while begin < stop:
            while until <= begin:
                since, until, taken = next(pieces, (math.inf, math.inf, 0.0))
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
