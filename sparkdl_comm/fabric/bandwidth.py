"""What each host's links can carry, worked out of what all daemons report. Pure.

A transfer that the network holds up is as fast as the slower one of its two links: the sender's up, or the receiver's down.
If one of them carries what it was taken to carry, that explains it, unless others over that link are much faster. If neither
does, one has become slower: the one that several peers find slow, else the one that was longest not seen to be fast. A link
that carries more than it was taken to is faster; so that this shows, transfers are paced at ``PROBE`` times what was reserved
for them. While a job's own transfers rest, what others send is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: A link that is ten times as fast as before is found in four reports.
PROBE = 2.0
#: Share of the time from which on a transfer counts as held up by the network.
_HELD = 0.5
#: Bytes of a transfer that say how fast it is; fewer are gone before the link is felt.
_TELLING = 256 * 1024
#: Share of a link's bandwidth that a transfer may leave unused although the link is what holds it up.
_SLACK = 0.15
#: Share of what the fastest transfer on a link gets that each has at least, if the link is what holds it up.
_FAIR = 0.5
#: Seconds for which a report counts.
_RECENT = 0.3
_MEMORY = 2.0
#: Share of the nominal rate below which nothing is believed.
_LEAST = 0.001


class Sample(NamedTuple):
    """What one transfer did: bytes ``sent`` in ``seconds`` to the host ``target``; ``held``: share of the time that the
    network held it up. ``transfer``: its number."""

    transfer: int
    target: int
    seconds: float
    sent: int
    held: float


@dataclass
class _Link:
    """One direction of a host. ``bandwidth``: bytes per second that the job can use. ``fast``: when it was last seen to be
    so."""

    nominal: float
    bandwidth: float
    fast: float = -math.inf
    others: float = 0.0
    #: The job's transfers through it: number -> (time, bytes per second).
    flows: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: Other ends of transfers that were held up and not explained -> when.
    suspects: dict[int, float] = field(default_factory=dict)
    #: The bandwidth before it was blamed, and the link that may have been the slow one instead.
    doubt: tuple[_Link, float] | None = None

    def through(self, now: float) -> float:
        """Bytes per second of the job's transfers."""
        return sum(rate for when, rate in self.flows.values() if now - when <= _RECENT)

    def is_fair(self, rate: float, now: float) -> bool:
        """Whether a transfer of this rate may be one of those that share the link: TCP gives each about as much."""
        rates = [rate for when, rate in self.flows.values() if now - when <= _RECENT]
        return rate >= _FAIR * max(rates, default=0.0)

    def see(self, rate: float, now: float) -> None:
        self.bandwidth, self.fast, self.doubt = rate, now, None

    def peers(self, now: float) -> int:
        return sum(1 for when in self.suspects.values() if now - when <= _MEMORY)


class Bandwidths:
    """``nominal``: bytes per second that each host's links are taken to have, in each direction, until they show."""

    def __init__(self, hosts: int, nominal: float) -> None:
        self._up = [_Link(nominal, nominal) for _ in range(hosts)]
        self._down = [_Link(nominal, nominal) for _ in range(hosts)]

    def of(self, host: int) -> tuple[float, float]:
        """Bytes per second that the job can send from and to the host now."""
        return self._free(self._up[host]), self._free(self._down[host])

    def observe(self, host: int, seconds: float, up: int, down: int, samples: Sequence[Sample], now: float) -> None:
        """A daemon of ``host`` reports: in the last ``seconds``, ``up`` and ``down`` bytes passed its NICs, and its
        transfers did ``samples``."""
        telling = [s for s in samples if s.target != host and s.sent >= _TELLING]
        for sample in telling:
            rate = sample.sent / sample.seconds
            self._up[host].flows[sample.transfer] = self._down[sample.target].flows[sample.transfer] = now, rate
        for sample in telling:
            self._judge(host, sample, now)
        for link, passed in ((self._up[host], up), (self._down[host], down)):
            link.flows = {n: flow for n, flow in link.flows.items() if now - flow[0] <= _RECENT}
            link.others = 0.0 if link.flows or samples else passed / seconds

    def limit(self, host: int, speed: float) -> None:
        """The system says that the host's links have ``speed`` bytes per second; 0: it does not know."""
        for link in (self._up[host], self._down[host]):
            if 0 < speed < link.nominal:
                link.nominal, link.bandwidth = speed, min(speed, link.bandwidth)

    def _judge(self, host: int, sample: Sample, now: float) -> None:
        up, down = self._up[host], self._down[sample.target]
        rate = sample.sent / sample.seconds
        full = [link for link in (up, down) if link.through(now) >= (1 - _SLACK) * link.bandwidth]
        held = sample.held >= _HELD
        for link in full:
            carried = link.through(now)
            link.see(carried if held and link.is_fair(rate, now) else max(carried, link.bandwidth), now)
        if not held or any(link.is_fair(rate, now) for link in full):
            return
        up.suspects[sample.target], down.suspects[host] = now, now
        if len(full) == 1:  # others get more of that one
            slow, other = (down, up) if full[0] is up else (up, down)
        elif (up.peers(now), -up.fast) > (down.peers(now), -down.fast):
            slow, other = up, down
        else:
            slow, other = down, up
        if slow.peers(now) > 1:
            self._acquit(slow)
        slow.doubt = slow.doubt or (other, slow.bandwidth)
        slow.bandwidth = max(slow.through(now), _LEAST * slow.nominal)

    def _acquit(self, slow: _Link) -> None:
        """Links that were blamed for what ``slow`` did get back what they had."""
        for link in (*self._up, *self._down):
            if link.doubt is not None and link.doubt[0] is slow:
                link.bandwidth, link.doubt = link.doubt[1], None

    @staticmethod
    def _free(link: _Link) -> float:
        return max(link.bandwidth - link.others, _LEAST * link.nominal)
