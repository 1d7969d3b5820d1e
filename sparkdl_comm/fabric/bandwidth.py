"""Estimate of what each host's links can carry, from the reports of all daemons. Pure: no I/O, no clock.

Each host has an uplink and a downlink. A transfer that the network holds up runs at the rate of the slower of two
links: the sender's uplink or the receiver's downlink. A full link explains the rate, unless other transfers over it
were much faster. If neither link explains it, one of the two has become slower. These rules choose it, in this order:

- A link is innocent if it is full, or if other transfers over it were much faster.
- A link is innocent if it recently carried much more and the other did not. This finds a slow server's link that
  several workers share: each worker's uplink carried more while that worker sent alone.
- The link that fewer hosts use is blamed. A wrong guess costs less there: a worker's link is measured again with its
  next transfer. A server's link would look full with one slow worker, and the scheduler would send nothing alongside
  to disprove it.
- The link whose estimate is older is blamed.

A blamed link of several hosts gets its earlier rate back after a while, because nothing else would disprove the
blame.

Concurrent transfers are known only once all daemons have reported, so judgment waits a little. A link that carries
more than its estimate is raised at once. To make that visible, transfers are paced at ``PROBE_FACTOR`` times the
reserved rate. While the job's own transfers rest, traffic of other programs is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkdl_comm.fabric.protocol import Rates

#: Pacing factor over the reserved rate. A link that became ten times as fast is found in one report.
PROBE_FACTOR = 10.0
#: Share of the time a transfer must be blocked to count as limited by the network.
_BLOCKED_SHARE = 0.5
#: Minimum bytes of a transfer whose rate is evidence. Fewer fit into buffers and never feel the link.
_EVIDENCE_BYTES = 256 * 1024
#: Minimum seconds that a smaller sample of such a transfer must cover to be evidence.
_EVIDENCE_SECONDS = 0.03
#: Seconds for which a link must exceed its nominal bandwidth before the higher rate is believed.
_BURST_SECONDS = 0.1
#: Share of a link's bandwidth that may stay unused on a link that counts as full.
_SLACK_SHARE = 0.15
#: Minimum share of the fastest transfer's rate that every transfer gets on a link that is the bottleneck.
_FAIR_SHARE = 0.5
#: A link has become slower if it carries less than this share of its recent rate. Smaller drops may be chance.
_SLOWER_SHARE = 0.5
#: Seconds after which all daemons have reported on a moment.
_REPORT_SECONDS = 0.15
#: Seconds for which unexplained traffic must last, because a transfer may be reported later than its bytes.
_UNEXPLAINED_SECONDS = 0.3
#: Seconds for which a link's transfers are remembered.
_RECENT_SECONDS = 1.0
#: Seconds for which the hosts that used a link are remembered.
_PEER_SECONDS = 2.0
#: Seconds after which a blamed link of several hosts gets its earlier bandwidth back.
_BLAME_SECONDS = 1.0
#: Relative change of a host's bandwidth that is reported to the core, which then makes new schedules.
_CHANGED_SHARE = 0.05
#: Share of the nominal rate below which no estimate falls.
_LEAST_SHARE = 0.001


class _Use(NamedTuple):
    """Transfer's use of a link between two moments.

    - ``rate``: bytes per second.
    - ``hosts``: sending and receiving host.
    - ``is_evidence``: the transfer is large enough, and this part of it long enough, for its rate to count.
    """

    begin: float
    end: float
    rate: float
    hosts: tuple[int, int]
    is_evidence: bool

    def compute_share(self, begin: float, end: float) -> float:
        """Return the share of the time from ``begin`` to ``end`` in which the transfer ran."""
        return max(0.0, min(self.end, end) - max(self.begin, begin)) / (end - begin)


@dataclass(eq=False)
class _Link:
    """Uplink or downlink of a host.

    - ``nominal``: configured or reported bytes per second.
    - ``bandwidth``: estimated bytes per second for the job.
    - ``evidence_time``: time of the newest evidence for ``bandwidth``.
    - ``foreign_rate``: bytes per second of other programs.
    - ``last_use_time``: time of the job's last use.
    - ``unexplained``: recent times and rates, bytes per second, of traffic that no known transfer explains.
    - ``uses``: recent transfers over the link.
    """

    nominal: float
    bandwidth: float
    evidence_time: float = -math.inf
    foreign_rate: float = 0.0
    last_use_time: float = -math.inf
    unexplained: list[tuple[float, float]] = field(default_factory=list)
    uses: list[_Use] = field(default_factory=list)
    #: Last use for each pair of sending and receiving host.
    last_use_by_hosts: dict[tuple[int, int], float] = field(default_factory=dict)
    #: The other link that may have been the slow one, and this link's bandwidth before it was blamed.
    doubt: tuple[_Link, float] | None = None
    #: Time of the blame, bandwidth before it, and the other link of the transfer.
    blamed: tuple[float, float, _Link] | None = None

    def record_use(self, use: _Use, now: float) -> None:
        self.uses = [other for other in self.uses if now - other.end <= _RECENT_SECONDS] + [use]
        self.last_use_time = self.last_use_by_hosts[use.hosts] = now

    def record_traffic(self, rate: float, now: float) -> None:
        """Record ``rate``, the bytes per second of all programs as the operating system counted them."""
        known = now - self.last_use_time <= _UNEXPLAINED_SECONDS
        self.unexplained = (
            []
            if known
            else [each for each in self.unexplained if now - each[0] < 2 * _UNEXPLAINED_SECONDS] + [(now, rate)]
        )
        has_lasted = bool(self.unexplained) and now - self.unexplained[0][0] >= _UNEXPLAINED_SECONDS
        self.foreign_rate = min(rate for _, rate in self.unexplained) if has_lasted else 0.0

    def measure_rate(self, during: _Use) -> float:
        """Return the bytes per second of the job's transfers during another one."""
        return sum(use.rate * use.compute_share(during.begin, during.end) for use in self.uses)

    def measure_sustained_rate(self, during: _Use) -> float:
        """Return :meth:`measure_rate`, counting a rate above nominal only if it has lasted. A burst is no evidence."""
        lasting = during._replace(begin=min(during.begin, during.end - _BURST_SECONDS))
        return min(self.measure_rate(during), max(self.nominal, self.measure_rate(lasting)))

    def was_faster(self, during: _Use) -> bool:
        """Return whether the link recently carried much more than during this use."""
        enough = self.measure_rate(during) / _SLOWER_SHARE
        return any(use.is_evidence and self.measure_rate(use) > enough for use in self.uses)

    def is_fair(self, during: _Use) -> bool:
        """Return whether this transfer got a fair share of the link. TCP gives concurrent transfers similar rates."""
        shares: dict[tuple[int, int], float] = {}
        sent: dict[tuple[int, int], float] = {}
        for use in self.uses:
            share = use.compute_share(during.begin, during.end)
            shares[use.hosts] = shares.get(use.hosts, 0.0) + share
            sent[use.hosts] = sent.get(use.hosts, 0.0) + share * use.rate
        rates = [sent[ends] / share for ends, share in shares.items() if share >= _FAIR_SHARE]
        return during.rate >= _FAIR_SHARE * max(rates, default=0.0)

    def set_bandwidth(self, rate: float, when: float) -> None:
        self.bandwidth, self.evidence_time, self.doubt = rate, max(self.evidence_time, when), None

    def restore(self, now: float) -> None:
        """Restore the bandwidth that the link had before it was blamed, if that was a while ago and several hosts use
        it."""
        if self.blamed is not None and now - self.blamed[0] >= _BLAME_SECONDS and self.is_shared(self.blamed[2], now):
            self.set_bandwidth(max(self.bandwidth, self.blamed[1]), now)
            self.blamed = None

    def count_peers(self, now: float) -> int:
        """Return the number of hosts that the link recently carried traffic to or from."""
        return sum(1 for when in self.last_use_by_hosts.values() if now - when <= _PEER_SECONDS)

    def is_shared(self, other: _Link, now: float) -> bool:
        """Return whether several hosts use this link, and more than use ``other``."""
        return self.count_peers(now) > max(1, other.count_peers(now))


class _Case(NamedTuple):
    """Transfer's use of an uplink and a downlink, still to be judged. ``estimate``: their estimated bandwidths at the
    time."""

    links: tuple[_Link, _Link]
    estimate: tuple[float, float]
    use: _Use
    is_blocked: bool


class BandwidthEstimator:
    """Bandwidth estimates of all hosts.

    :param nominal: bytes per second of every link in each direction, used until measurements replace it.
    """

    def __init__(self, hosts: int, nominal: float) -> None:
        self._up = [_Link(nominal, nominal) for _ in range(hosts)]
        self._down = [_Link(nominal, nominal) for _ in range(hosts)]
        self._cases: list[_Case] = []
        self._reported = {host: self.estimate(host) for host in range(hosts)}

    def estimate(self, host: int) -> tuple[float, float]:
        """Return the bytes per second that the job can now send from and to the host."""
        return self._get_free_rate(self._up[host]), self._get_free_rate(self._down[host])

    def get_stable_estimates(self) -> dict[int, tuple[float, float]]:
        """Return the estimates of all hosts, ignoring changes of up to 5 %."""
        for host, before in self._reported.items():
            found = self.estimate(host)
            if any(abs(new - old) > _CHANGED_SHARE * old for new, old in zip(found, before, strict=True)):
                self._reported[host] = found
        return self._reported

    def observe(self, host: int, rates: Rates, targets: Mapping[int, int], now: float) -> None:
        """Take a report of a daemon on ``host``. ``targets``: receiving host of each known transfer."""
        for link in (self._up[host], self._down[host]):
            if 0 < rates.speed < link.nominal:
                link.nominal, link.bandwidth = rates.speed, min(rates.speed, link.bandwidth)
        for link in (*self._up, *self._down):
            link.restore(now)
        for flow in rates.flows:
            target = targets.get(flow.transfer, host)
            if target == host:
                continue
            end = now - flow.ago
            is_long = flow.sent >= _EVIDENCE_BYTES or flow.seconds >= _EVIDENCE_SECONDS
            is_evidence = flow.total >= _EVIDENCE_BYTES and is_long
            use = _Use(end - flow.seconds, end, flow.sent / flow.seconds, (host, target), is_evidence)
            links = self._up[host], self._down[target]
            for link in links:
                link.record_use(use, now)
            if is_evidence:
                estimate = links[0].bandwidth, links[1].bandwidth
                self._cases.append(_Case(links, estimate, use, flow.held >= _BLOCKED_SHARE))
                for link in links:
                    if (shown := link.measure_sustained_rate(use)) > link.bandwidth:
                        link.set_bandwidth(shown, use.end)
        for link, passed in ((self._up[host], rates.up), (self._down[host], rates.down)):
            link.record_traffic(passed / rates.seconds, now)
        known = [case for case in self._cases if now - case.use.end >= _REPORT_SECONDS]
        self._cases = [case for case in self._cases if now - case.use.end < _REPORT_SECONDS]
        for case in known:
            self._judge(case)

    def _judge(self, case: _Case) -> None:
        use, (up, down) = case.use, case.links
        full = []
        for link, estimate in zip(case.links, case.estimate, strict=True):
            carried = link.measure_sustained_rate(use)
            if carried >= (1 - _SLACK_SHARE) * min(estimate, link.bandwidth):
                full.append(link)
                if link.evidence_time <= use.end:  # no newer evidence
                    lower = case.is_blocked and link.is_fair(use)
                    link.set_bandwidth(carried if lower else max(carried, link.bandwidth), use.end)
        if not case.is_blocked or any(link.is_fair(use) for link in full):
            return

        def rank_innocence(link: _Link) -> tuple[bool, bool, int, float]:
            return (
                link in full or not link.is_fair(use),
                link.was_faster(use),
                link.count_peers(use.end),
                link.evidence_time,
            )

        slow, other = (up, down) if rank_innocence(up) < rank_innocence(down) else (down, up)
        if slow.evidence_time > use.end:
            return
        if slow.is_shared(other, use.end):
            self._acquit(slow)
        slow.blamed = slow.blamed or (use.end, slow.bandwidth, other)
        slow.doubt = slow.doubt or (other, slow.bandwidth)
        slow.bandwidth = max(slow.measure_rate(use), _LEAST_SHARE * slow.nominal)

    def _acquit(self, slow: _Link) -> None:
        """Restore the links that were blamed where ``slow`` was the bottleneck."""
        for link in (*self._up, *self._down):
            if link.doubt is not None and link.doubt[0] is slow:
                link.bandwidth, link.doubt = link.doubt[1], None

    @staticmethod
    def _get_free_rate(link: _Link) -> float:
        return max(link.bandwidth - link.foreign_rate, _LEAST_SHARE * link.nominal)
