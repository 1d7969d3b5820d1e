"""What each host's links can carry, worked out of what all daemons report. Pure.

A transfer that the network holds up is as fast as the slower one of its two links: the sender's up, or the receiver's down.
If one of them carried what it was taken to carry, that explains it, unless others over that link were much faster. If neither
did, one has become slower. It is not one that carried about as much as ever of late, if the other carried much more: so a
server's link is found that several share, each of which had more alone. If that does not tell, it is the one that fewer hosts
use. That costs less where it is wrong: a worker's link is tried again with its next transfer, beside others'. But a server's
link would seem to be full with one slow worker, and as nothing is sent beside that one, nobody would see that it is not.
So after a while such a link is taken to have again what it had.

What others did at the same time is known only when all daemons have reported on it, so that is judged a little later. A link
that carries more than it was taken to is faster, at once; so that this shows, transfers are paced at ``PROBE`` times what was
reserved for them. While a job's own transfers rest, what others send is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: A link that is ten times as fast as before is found in one report.
PROBE = 10.0
#: Share of the time from which on a transfer counts as held up by the network.
_HELD = 0.5
#: Bytes of a transfer from which on it says how fast it is; fewer are gone before the link is felt.
_TELLING = 256 * 1024
#: Seconds for which a part of such a transfer has to last, unless it has as many bytes itself.
_LASTING = 0.03
#: Seconds for which a link has to carry more than its nominal bandwidth before that is believed.
_LONG = 0.1
#: Share of a link's bandwidth that a transfer may leave unused although the link is what holds it up.
_SLACK = 0.15
#: Share of what the fastest transfer on a link gets that each has at least, if the link is what holds it up.
_FAIR = 0.5
#: A link that carries less than this share of what it carried of late has become slower: less of a difference may be chance.
_SLOWER = 0.5
#: Seconds after which all daemons have reported on a moment.
_COMPLETE = 0.15
#: Seconds for which bytes must have passed that are no transfer's, as transfers may be reported later than their bytes.
_STRANGE = 0.3
#: Seconds for which it is remembered what a link has carried.
_RECENT = 1.0
#: Seconds for which it is remembered which hosts have used a link.
_MEMORY = 2.0
#: Seconds after which a link that several hosts use is tried again, if it was taken for slow.
_FORGIVEN = 1.0
#: Share by which a host's bandwidth has to change for the core to hear of it: it makes new schedules then.
_CHANGED = 0.05
#: Share of the nominal rate below which nothing is believed.
_LEAST = 0.001


class Sample(NamedTuple):
    """What one transfer did since the last report: bytes ``sent`` in ``seconds`` to the host ``target``, until ``ago`` seconds
    before the report; ``held``: share of the time that the network held it up; ``total``: bytes since it began."""

    target: int
    seconds: float
    sent: int
    held: float
    total: int
    ago: float

    @property
    def is_telling(self) -> bool:
        return self.total >= _TELLING and (self.sent >= _TELLING or self.seconds >= _LASTING)


class _Use(NamedTuple):
    """A transfer's bytes per second through a link, between two moments; ``ends``: the hosts that it goes from and to;
    ``is_telling``: as that of the sample."""

    begin: float
    end: float
    rate: float
    ends: tuple[int, int]
    is_telling: bool

    def share(self, begin: float, end: float) -> float:
        """Of the time between these, the part in which it was used."""
        return max(0.0, min(self.end, end) - max(self.begin, begin)) / (end - begin)


@dataclass(eq=False)
class _Link:
    """One direction of a host. ``bandwidth``: bytes per second that the job can use. ``fast``: when it was last seen to be
    so. ``others``: bytes per second that are not the job's. ``used``: when the job last used it; ``strange``: of late, when
    how many bytes per second passed that are no known transfer's."""

    nominal: float
    bandwidth: float
    fast: float = -math.inf
    others: float = 0.0
    used: float = -math.inf
    strange: list[tuple[float, float]] = field(default_factory=list)
    uses: list[_Use] = field(default_factory=list)
    #: From and to which hosts it has carried something -> when, the last time.
    last: dict[tuple[int, int], float] = field(default_factory=dict)
    #: The bandwidth before it was blamed, and the link that may have been the slow one instead.
    doubt: tuple[_Link, float] | None = None
    #: When it was blamed, what it had before, and the link that may have been the slow one instead.
    blamed: tuple[float, float, _Link] | None = None

    def use(self, use: _Use, now: float) -> None:
        self.uses = [other for other in self.uses if now - other.end <= _RECENT] + [use]
        self.used = self.last[use.ends] = now

    def passed(self, rate: float, now: float) -> None:
        """The system has counted this, whosever it was."""
        known = now - self.used <= _STRANGE
        self.strange = [] if known else [each for each in self.strange if now - each[0] < 2 * _STRANGE] + [(now, rate)]
        has_lasted = bool(self.strange) and now - self.strange[0][0] >= _STRANGE
        self.others = min(rate for _, rate in self.strange) if has_lasted else 0.0

    def carried(self, during: _Use) -> float:
        """Bytes per second of the job's transfers."""
        return sum(use.rate * use.share(during.begin, during.end) for use in self.uses)

    def shown(self, during: _Use) -> float:
        """The same, but what is above the nominal bandwidth counts only if it has lasted: a burst is no bandwidth."""
        lasting = during._replace(begin=min(during.begin, during.end - _LONG))
        return min(self.carried(during), max(self.nominal, self.carried(lasting)))

    def was_faster(self, during: _Use) -> bool:
        """Whether it carried much more of late than during this."""
        enough = self.carried(during) / _SLOWER
        return any(use.is_telling and self.carried(use) > enough for use in self.uses)

    def is_fair(self, during: _Use) -> bool:
        """Whether this may be one of those that share the link: TCP gives each about as much."""
        shares: dict[tuple[int, int], float] = {}
        sent: dict[tuple[int, int], float] = {}
        for use in self.uses:
            share = use.share(during.begin, during.end)
            shares[use.ends] = shares.get(use.ends, 0.0) + share
            sent[use.ends] = sent.get(use.ends, 0.0) + share * use.rate
        rates = [sent[ends] / share for ends, share in shares.items() if share >= _FAIR]
        return during.rate >= _FAIR * max(rates, default=0.0)

    def see(self, rate: float, when: float) -> None:
        self.bandwidth, self.fast, self.doubt = rate, max(self.fast, when), None

    def forgive(self, now: float) -> None:
        """It is taken to have again what it had, if it was blamed long ago and several hosts use it."""
        if self.blamed is not None and now - self.blamed[0] >= _FORGIVEN and self.is_shared(self.blamed[2], now):
            self.see(max(self.bandwidth, self.blamed[1]), now)
            self.blamed = None

    def peers(self, now: float) -> int:
        """From or to how many hosts it has carried something of late."""
        return sum(1 for when in self.last.values() if now - when <= _MEMORY)

    def is_shared(self, other: _Link, now: float) -> bool:
        """Of the two links of a transfer, whether this is the one that more hosts use, and several."""
        return self.peers(now) > max(1, other.peers(now))


class _Case(NamedTuple):
    """A transfer's use of two links, ``up`` of one host and ``down`` of another, to be judged; ``taken``: what they were taken
    to carry."""

    links: tuple[_Link, _Link]
    taken: tuple[float, float]
    use: _Use
    is_held: bool


class Bandwidths:
    """``nominal``: bytes per second that each host's links are taken to have, in each direction, until they show."""

    def __init__(self, hosts: int, nominal: float) -> None:
        self._up = [_Link(nominal, nominal) for _ in range(hosts)]
        self._down = [_Link(nominal, nominal) for _ in range(hosts)]
        self._cases: list[_Case] = []
        self._told = {host: self.of(host) for host in range(hosts)}

    def of(self, host: int) -> tuple[float, float]:
        """Bytes per second that the job can send from and to the host now."""
        return self._free(self._up[host]), self._free(self._down[host])

    def told(self) -> dict[int, tuple[float, float]]:
        """Of every host the same, without small changes."""
        for host, before in self._told.items():
            found = self.of(host)
            if any(abs(new - old) > _CHANGED * old for new, old in zip(found, before, strict=True)):
                self._told[host] = found
        return self._told

    def observe(self, host: int, seconds: float, up: int, down: int, samples: Sequence[Sample], now: float) -> None:
        """A daemon of ``host`` reports: in the last ``seconds``, ``up`` and ``down`` bytes passed its NICs, and its
        transfers did ``samples``."""
        for link in (*self._up, *self._down):
            link.forgive(now)
        over_links = [sample for sample in samples if sample.target != host]
        for sample in over_links:
            end = now - sample.ago
            use = _Use(
                end - sample.seconds, end, sample.sent / sample.seconds, (host, sample.target), sample.is_telling
            )
            links = self._up[host], self._down[sample.target]
            for link in links:
                link.use(use, now)
            if sample.is_telling:
                taken = links[0].bandwidth, links[1].bandwidth
                self._cases.append(_Case(links, taken, use, sample.held >= _HELD))
                for link in links:
                    if (shown := link.shown(use)) > link.bandwidth:
                        link.see(shown, use.end)
        for link, passed in ((self._up[host], up), (self._down[host], down)):
            link.passed(passed / seconds, now)
        known = [case for case in self._cases if now - case.use.end >= _COMPLETE]
        self._cases = [case for case in self._cases if now - case.use.end < _COMPLETE]
        for case in known:
            self._judge(case)

    def limit(self, host: int, speed: float) -> None:
        """The system says that the host's links have ``speed`` bytes per second; 0: it does not know."""
        for link in (self._up[host], self._down[host]):
            if 0 < speed < link.nominal:
                link.nominal, link.bandwidth = speed, min(speed, link.bandwidth)

    def _judge(self, case: _Case) -> None:
        use, (up, down) = case.use, case.links
        full = []
        for link, taken in zip(case.links, case.taken, strict=True):
            carried = link.shown(use)
            if carried >= (1 - _SLACK) * min(taken, link.bandwidth):
                full.append(link)
                if link.fast <= use.end:  # nothing newer is known
                    lower = case.is_held and link.is_fair(use)
                    link.see(carried if lower else max(carried, link.bandwidth), use.end)
        if not case.is_held or any(link.is_fair(use) for link in full):
            return

        def innocence(link: _Link) -> tuple[bool, bool, int, float]:
            return link in full or not link.is_fair(use), link.was_faster(use), link.peers(use.end), link.fast

        slow, other = (up, down) if innocence(up) < innocence(down) else (down, up)
        if slow.fast > use.end:
            return
        if slow.is_shared(other, use.end):
            self._acquit(slow)
        slow.blamed = slow.blamed or (use.end, slow.bandwidth, other)
        slow.doubt = slow.doubt or (other, slow.bandwidth)
        slow.bandwidth = max(slow.carried(use), _LEAST * slow.nominal)

    def _acquit(self, slow: _Link) -> None:
        """Links that were blamed for what ``slow`` did get back what they had."""
        for link in (*self._up, *self._down):
            if link.doubt is not None and link.doubt[0] is slow:
                link.bandwidth, link.doubt = link.doubt[1], None

    @staticmethod
    def _free(link: _Link) -> float:
        return max(link.bandwidth - link.others, _LEAST * link.nominal)
