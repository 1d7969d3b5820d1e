"""Order in which updates go to the servers, and the choice of updates to drop.

MLfabric, section 5.1, algorithms 1 and 2: the shortest transfer goes first, unless an update's deadline is due. A due
update is dropped if it would end after the next one, because the server would idle until it arrives.

A deadline is the last position in the batch at which an update may be applied. The paper takes an update at position
i if its deadline is i, which is too late for a second update with that deadline. Here deadlines are due as soon as
every position up to some deadline is needed by an update with a deadline up to there. Among due updates the shortest
transfer goes first too. If more updates need these positions than there are, the slowest are dropped before anything
is ordered.

With several servers, an update's components are placed as one. Their bandwidth is reserved together, and the update
is complete with the last of them (section 10.2).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparkdl_comm.fabric.core.network import ResidualNetwork, Spans, get_end

#: Relative tolerance for equal finish times.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Job:
    """Update to be placed.

    - ``host``: its worker's host.
    - ``sizes``: bytes for each server.
    - ``deadline``: last position it may have, counted from 1; None if any.
    """

    host: int
    sizes: tuple[int, ...]
    deadline: int | None = None


@dataclass
class Order:
    """Result of :func:`order`.

    - ``kept``: indices of jobs in the order of their transfers.
    - ``schedules``: for each of ``kept``, a schedule to each server.
    - ``dropped``: indices of the other jobs.
    """

    kept: list[int] = field(default_factory=list)
    schedules: list[tuple[Spans, ...]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


def order(jobs: Sequence[Job], network: ResidualNetwork, servers: Sequence[int], now: float) -> Order:
    """Order jobs that are all ready at ``now``. ``network`` is not changed."""
    return _Ordering(jobs, network, servers, now).run()


class _Deadlines:
    """Slack of each deadline: positions left up to it, minus jobs that must be placed by then.

    If a deadline has more jobs than positions, the slowest jobs are dropped.
    """

    def __init__(self, jobs: Sequence[Job], slowness: Sequence[float]) -> None:
        last = len(jobs)
        self.dropped: list[int] = []
        self._by_deadline: list[set[int]] = [set() for _ in range(last + 1)]
        self._deadline_of: dict[int, int] = {}
        due = sorted((job.deadline, index) for index, job in enumerate(jobs) if job.deadline is not None)
        slowest: list[tuple[float, int]] = []
        for deadline, index in due:
            if deadline >= last:
                break
            self._deadline_of[index] = deadline
            heapq.heappush(slowest, (-slowness[index], index))
            if len(slowest) > max(deadline, 0):
                late = heapq.heappop(slowest)[1]
                self.dropped.append(late)
                del self._deadline_of[late]
        counts = np.zeros(last + 1, dtype=np.int64)
        for index, deadline in self._deadline_of.items():
            self._by_deadline[deadline].add(index)
            counts[deadline] += 1
        self._slack = np.arange(last + 1) - counts.cumsum()

    def find_due(self, position: int) -> list[int]:
        """Return the jobs from which this position must be filled to keep all deadlines. Empty if any job may take
        it."""
        slack = self._slack[position:]
        if not slack.size or slack[deadline := int(slack.argmin())]:
            return []
        return sorted(index for at in self._by_deadline[position : position + deadline + 1] for index in at)

    def place(self, index: int) -> None:
        """Give this job the next position."""
        deadline = self._deadline_of.pop(index, len(self._slack))
        if deadline < len(self._slack):
            self._by_deadline[deadline].discard(index)
        self._slack[:deadline] -= 1

    def displace(self) -> None:
        """Free the position of the last placed job, which is dropped."""
        self._slack += 1


@dataclass(frozen=True)
class _Candidate:
    """Candidate for the next position.

    - ``index``: index of the job.
    - ``done``: time at which it would be complete, seconds.
    - ``schedules``: schedule to each server.
    - ``is_due``: a deadline requires that a job like this is next.
    """

    index: int
    done: float
    schedules: tuple[Spans, ...]
    is_due: bool


class _Ordering:
    """Run of the ordering algorithm."""

    def __init__(self, jobs: Sequence[Job], network: ResidualNetwork, servers: Sequence[int], now: float) -> None:
        self._jobs, self._network, self._servers, self._now = jobs, network, servers, now
        self._least_seconds = [_estimate_least_seconds(job, network, servers) for job in jobs]
        self._smallest = min((sum(job.sizes) for job in jobs if job.host not in servers), default=0) or 1
        self._deadlines = _Deadlines(jobs, self._least_seconds)
        dropped = set(self._deadlines.dropped)
        self._unplaced = [
            index for index in sorted(range(len(jobs)), key=self._least_seconds.__getitem__) if index not in dropped
        ]

    def run(self) -> Order:
        found = Order(dropped=list(self._deadlines.dropped))
        pick = self._pick(1)
        while pick:
            before = self._network
            self._network = before.copy()
            self._place(pick)
            following = self._pick(len(found.kept) + 2)
            if pick.is_due and following and pick.done > following.done:
                self._network = before
                self._deadlines.displace()
                found.dropped.append(pick.index)
                pick = self._pick(len(found.kept) + 1)
            else:
                found.kept.append(pick.index)
                found.schedules.append(pick.schedules)
                pick = following
        return found

    def _place(self, pick: _Candidate) -> None:
        self._unplaced.remove(pick.index)
        self._deadlines.place(pick.index)
        for server, schedule in zip(self._servers, pick.schedules, strict=True):
            self._network.reserve(self._jobs[pick.index].host, server, schedule)

    def _pick(self, position: int) -> _Candidate | None:
        """Return the job that ends first, among the due ones if there are any."""
        due = self._deadlines.find_due(position)
        best: _Candidate | None = None
        bounds, enough = self._bounds(), math.inf
        for index in sorted(due, key=self._least_seconds.__getitem__) if due else self._unplaced:
            if self._least_seconds[index] >= enough:
                break
            schedules = self._schedules(self._jobs[index])
            done = max(get_end(schedule, self._now) for schedule in schedules)
            if not best or done < best.done:
                best = _Candidate(index, done, schedules, bool(due))
                soonest = done - _ROUNDING * (done - self._now)
                enough = min(
                    (soonest - since) / part if part else math.inf if since < soonest else -math.inf
                    for since, part in bounds
                )
        return best

    def _bounds(self) -> list[tuple[float, float]]:
        """Return pairs (``since``, ``part``): no job is complete before ``since + part * least``.

        ``least`` is the job's least time on its sender's link. By any moment, a job can have sent no more than the
        server's link could carry. The rest still has to pass the sender's link.
        """
        if len(self._servers) > 1:
            return [(max(self._now, min(self._network.links[2 * server + 1][0][0] for server in self._servers)), 1.0)]
        bounds: list[tuple[float, float]] = []
        taken = 0.0
        for begin, stop, rate in self._network.links[2 * self._servers[0] + 1]:
            begin = max(begin, self._now)
            if begin < stop:
                bounds.append((begin, 1 - taken / self._smallest))
                if taken + rate * (stop - begin) >= self._smallest:
                    bounds.append((begin + (self._smallest - taken) / rate, 0.0))
                    break
                taken += rate * (stop - begin)
        return bounds

    def _schedules(self, job: Job) -> tuple[Spans, ...]:
        if len(self._servers) == 1:
            return (self._network.fill(job.host, self._servers[0], job.sizes[0], self._now),)
        network = self._network.copy()
        found = []
        for server, size in zip(self._servers, job.sizes, strict=True):
            found.append(network.fill(job.host, server, size, self._now))
            network.reserve(job.host, server, found[-1])
        return tuple(found)


def _estimate_least_seconds(job: Job, network: ResidualNetwork, servers: Sequence[int]) -> float:
    """Return the seconds that the job takes on its sender's link at full speed. Components for the own host take
    none."""
    sent = sum(size for size, server in zip(job.sizes, servers, strict=True) if server != job.host)
    return sent / max(rate for _, _, rate in network.links[2 * job.host])
