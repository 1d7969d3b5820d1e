"""Aggregation: choose the updates that go straight to the servers and the ones an aggregator sums first.

MLfabric, section 5.2, algorithm 3. The first n updates, in order, go straight to the servers. The next updates go to the
first aggregator, if they reach it before the servers have received everything earlier. When an update would be too late
for that, the second aggregator takes updates, and so on. An aggregator sends its sum when its group is complete. The
last aggregator takes all remaining updates.

Differences from the paper:

- The paper takes the n with the earliest end. If other updates follow this batch, every transfer to the servers
  delays them. So here n minimizes the end plus the time for which a server's link is busy. The busy time is weighted
  by the share of workers whose updates are still to come. Ties go to the earliest mean end of updates.
- For the same reason a sum may be the first transfer to the servers. It may take as long as one or two updates would
  take straight.
- The paper draws a random aggregator for each group. Here an aggregator on the host of the group's first update takes
  it, which saves that update's transfer. An aggregator with faster links is preferred if it passes the update on
  sooner.
- An aggregator always takes the first update of its group. The paper leaves this open, but an aggregator without
  updates would have nothing to send.

Distribution of models reverses aggregation (section 10.3): all requests of a batch get one version, through a tree of
distributors. Algorithm 3, run on the network with every direction reversed, finds the tree. The servers send to the
distributor of the last group first, then to the one before it. Workers whose updates would go straight to the servers
get the model straight from them, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from sparkdl_comm.fabric.core.network import ResidualNetwork, Spans, get_end
from sparkdl_comm.fabric.core.order import Job, order

#: Seconds by which an update may arrive late at its aggregator, to absorb rounding in sums of floats.
_ROUNDING = 1e-9
#: Numbers of straight updates whose transfer time the first sum may take.
_FIRST_SUM_UPDATES = (1, 2)


@dataclass
class Group:
    """Updates that arrive at the servers as one.

    - ``members``: indices of jobs, in order.
    - ``aggregator``: index of the aggregator, or None if the only member goes straight to the servers.
    - ``arrivals``: each member's schedule to the aggregator. Empty if there is no aggregator.
    - ``deliveries``: schedule to each server.
    - ``ready``: time at which the deliveries may begin, seconds.
    - ``done``: time at which the deliveries of this group and all earlier ones are complete, seconds.
    """

    members: list[int]
    aggregator: int | None = None
    arrivals: list[Spans] = field(default_factory=list)
    deliveries: list[Spans] = field(default_factory=list)
    ready: float = 0.0
    done: float = 0.0


@dataclass(frozen=True)
class Side:
    """Servers, or replicas, with their aggregators.

    - ``servers``: host of each server.
    - ``aggregators``: host of each aggregator, in the order of use.
    - ``busy_until``: time until which earlier groups keep the servers busy, seconds.
    """

    servers: Sequence[int]
    aggregators: Sequence[int]
    busy_until: float = -math.inf

    def find_sender(self, group: Group, jobs: Sequence[Job]) -> int:
        """Return the host that sends the group to the servers."""
        return jobs[group.members[0]].host if group.aggregator is None else self.aggregators[group.aggregator]


def aggregate(
    jobs: Sequence[Job],
    placed: Sequence[int],
    network: ResidualNetwork,
    side: Side,
    now: float,
    link_weight: float = 0.0,
) -> list[Group]:
    """Group ``placed``, indices of jobs, keep their order, and reserve bandwidth for all groups in ``network``.

    :param link_weight: weight of a second on a server's link, relative to a second by which the batch ends later.
    """
    search = _Search(jobs, placed, side, now, link_weight)
    network.links = search.find_best(network)
    return search.groups


def reserve(
    group: Group, jobs: Sequence[Job], network: ResidualNetwork, side: Side, *, deliveries: bool = True
) -> None:
    """Reserve a group's schedules in a network that does not contain them yet. With ``deliveries=False`` reserve the
    arrivals alone."""
    sender = side.find_sender(group, jobs)
    if group.aggregator is not None:
        for index, schedule in zip(group.members, group.arrivals, strict=True):
            network.reserve(jobs[index].host, sender, schedule)
    if deliveries:
        for server, schedule in zip(side.servers, group.deliveries, strict=True):
            network.reserve(sender, server, schedule)


def deliver(group: Group, jobs: Sequence[Job], network: ResidualNetwork, side: Side, after: float) -> None:
    """Schedule a group's deliveries to all servers and reserve their bandwidth in ``network``.

    :param group: gets ``deliveries`` and ``done``.
    :param after: earliest ``done``, seconds: when the groups before this one end.
    """
    sender = side.find_sender(group, jobs)
    group.deliveries, group.done = [], max(group.ready, after)
    for number, server in enumerate(side.servers):
        # A sum of dense updates is as large as one of them.
        size = max(jobs[index].sizes[number] for index in group.members)
        schedule = network.fill(sender, server, size, group.ready)
        network.reserve(sender, server, schedule)
        group.deliveries.append(schedule)
        group.done = max(group.done, get_end(schedule, group.ready))


class _Search:
    """Search for the number of updates that go straight to the servers, before the aggregators' sums.

    The search starts with a likely number, because an early end of the batch rules out most other numbers.
    """

    def __init__(self, jobs: Sequence[Job], placed: Sequence[int], side: Side, now: float, link_weight: float) -> None:
        self._jobs, self._placed, self._side, self._now, self._link_weight = jobs, placed, side, now, link_weight
        self._busy_until = max(now, side.busy_until)
        self._straight_groups: list[Group] = []
        self._best_cost = (math.inf, math.inf)
        self._best_links: list[Spans] = []
        self._peak_rates: list[float] = []
        self._aggregators_by_host: dict[int, list[int]] = {}
        for aggregator, host in enumerate(side.aggregators):
            self._aggregators_by_host.setdefault(host, []).append(aggregator)
        self.groups: list[Group] = []

    def find_best(self, network: ResidualNetwork) -> list[Spans]:
        """Set ``groups`` to the best grouping and return the links left over."""
        after = [network]
        self._best_links = network.links
        self._peak_rates = [max(rate for _, _, rate in link) for link in network.links]
        if not self._side.aggregators or not self._placed:
            self._try(len(self._placed), after)
            return self._best_links
        rate = sum(self._peak_rates[2 * host + 1] for host in self._side.aggregators)
        rest = self._count_link_bytes()
        likely = 0
        while likely < len(self._placed) and rate * (self._finish_straight(likely, after) - self._now) < rest[likely]:
            likely += 1
        for number in range(likely, -1, -1):
            if rate * (self._best_cost[0] - self._now) < rest[number]:
                break
            self._try(number, after)
        for number in range(likely + 1, len(self._placed) + 1):
            if (
                self._finish_straight(number, after) + self._weigh_link_seconds(self._straight_groups[:number])
                > self._best_cost[0]
            ):
                break
            self._try(number, after)
        for number in _FIRST_SUM_UPDATES:
            if number < len(self._placed):
                self._try(0, after, self._finish_straight(number, after))
        return self._best_links

    def _count_link_bytes(self) -> list[int]:
        """Return the minimum bytes that links must carry to aggregators, indexed by the number of straight updates.

        Updates on an aggregator's host may need no link.
        """
        sizes = [sum(self._jobs[index].sizes) for index in self._placed]
        near = sum(
            size
            for index, size in zip(self._placed, sizes, strict=True)
            if self._jobs[index].host in self._aggregators_by_host
        )
        return [sum(sizes) - near - before for before in accumulate(sizes, initial=0)]

    def _finish_straight(self, number: int, after: list[ResidualNetwork]) -> float:
        """Return when the first ``number`` updates reach the servers if all go straight there, seconds.

        ``after`` caches the residual networks: the first one has no update, the next one the first update, and so on.
        """
        for index in self._placed[len(self._straight_groups) : number]:
            after.append(after[-1].copy())
            self._straight_groups.append(self._make_straight(index, after[-1], self._straight_groups))
        return self._straight_groups[number - 1].done if number else self._busy_until

    def _try(self, number: int, after: list[ResidualNetwork], patience: float = -math.inf) -> None:
        """Compute the grouping whose first ``number`` updates go straight to the servers. Keep it if it is the best so
        far.

        :param after: cache of residual networks, as in :meth:`_finish_straight`.
        :param patience: updates may reach the first aggregator until this time, seconds, or until the servers have
            received all earlier groups, whichever is later.
        """
        self._finish_straight(number, after)
        trial = after[number].copy()
        groups = self._group_rest(self._straight_groups[:number], trial, patience)
        if groups is None:
            return
        done = groups[-1].done if groups else self._busy_until
        value = (done + self._weigh_link_seconds(groups), sum(group.done * len(group.members) for group in groups))
        if value < self._best_cost:
            self._best_cost, self.groups, self._best_links = value, groups, trial.links

    def _weigh_link_seconds(self, groups: Sequence[Group]) -> float:
        """Return the weighted seconds for which these groups use the busiest server's link."""
        seconds = [0.0] * len(self._side.servers)
        for group in groups:
            for number, schedule in enumerate(group.deliveries):
                sent = sum(rate * (stop - begin) for begin, stop, rate in schedule)
                seconds[number] += sent / self._peak_rates[2 * self._side.servers[number] + 1]
        return self._link_weight * max(seconds)

    def _make_straight(self, index: int, network: ResidualNetwork, earlier: list[Group]) -> Group:
        group = Group([index], ready=self._now)
        self._deliver(group, network, earlier)
        return group

    def _deliver(self, group: Group, network: ResidualNetwork, earlier: list[Group]) -> None:
        after = earlier[-1].done if earlier else self._busy_until
        deliver(group, self._jobs, network, self._side, after)

    def _group_rest(self, straight: list[Group], network: ResidualNetwork, patience: float) -> list[Group] | None:
        """Return the straight groups, then groups of all other updates. None if they would be worse than the best so
        far.

        ``patience`` is that of :meth:`_try`.
        """
        groups, first = straight, len(straight)
        used: set[int] = set()
        while first < len(self._placed) and len(used) < len(self._side.aggregators):
            aggregator = self._choose_aggregator(self._jobs[self._placed[first]].host, used)
            used.add(aggregator)
            latest = max(patience, groups[-1].done if groups else self._busy_until) + _ROUNDING
            if len(used) == len(self._side.aggregators):
                latest = math.inf
            group = self._gather(first, aggregator, network, latest)
            if group is None:
                return None
            first, patience = first + len(group.members), -math.inf
            self._deliver(group, network, groups)
            groups = [*groups, group]
            if group.done + self._weigh_link_seconds(groups) > self._best_cost[0] + _ROUNDING:
                return None
        return groups

    def _gather(self, first: int, aggregator: int, network: ResidualNetwork, latest: float) -> Group | None:
        """Return the group that starts at index ``first`` of the placed updates. None if an update would arrive after
        the best end so far."""
        group, host = Group([], aggregator, ready=self._now), self._side.aggregators[aggregator]
        for index in self._placed[first:]:
            job = self._jobs[index]
            schedule = network.fill(job.host, host, sum(job.sizes), self._now)
            arrival = get_end(schedule, self._now)
            if group.members and arrival > latest:
                break
            if arrival > self._best_cost[0]:
                return None
            network.reserve(job.host, host, schedule)
            group.members.append(index)
            group.arrivals.append(schedule)
            group.ready = max(group.ready, arrival)
        if len(group.members) == 1 and not group.arrivals[0]:
            return Group(group.members, ready=self._now)  # on its aggregator's host: skip the extra process
        return group

    def _choose_aggregator(self, host: int, used: set[int]) -> int:
        """Return the unused aggregator for a group whose first update is on ``host``."""
        next_free = next(number for number in range(len(self._side.aggregators)) if number not in used)
        near = next((number for number in self._aggregators_by_host.get(host, ()) if number not in used), next_free)
        return min(
            near, next_free, key=lambda number: self._compute_seconds_per_byte(host, self._side.aggregators[number])
        )

    def _compute_seconds_per_byte(self, source: int, host: int) -> float:
        """Return the time per byte of the path through an aggregator: first update, one more update that may share
        its downlink, and the sum."""
        out, into = self._peak_rates[2 * host], self._peak_rates[2 * host + 1]
        first = 0.0 if source == host else 1 / min(self._peak_rates[2 * source], into)
        return first + 1 / into + 1 / out


@dataclass(frozen=True)
class Branch:
    """Workers that get the model together.

    - ``members``: indices of jobs.
    - ``distributor``: index of the distributor, or None if the only member gets the model straight from the servers.
    - ``arrivals``: schedule from each server to the distributor, or to that member.
    - ``onward``: schedule from the distributor to each member. Empty if there is no distributor.
    """

    members: list[int]
    distributor: int | None
    arrivals: list[Spans]
    onward: list[Spans]


def distribute(
    jobs: Sequence[Job], network: ResidualNetwork, side: Side, now: float, link_weight: float = 0.0
) -> list[Branch]:
    """Return the branches in the order in which the servers send to them, with bandwidth reserved in ``network``.

    :param jobs: each request's worker host and the bytes of each server's component.
    :param side: the servers, and as aggregators the distributors. Updates under way to them delay no models.
    :param link_weight: see :func:`aggregate`.
    """
    mirrored, side = network.mirrored(), replace(side, busy_until=-math.inf)
    placed = order(jobs, mirrored, side.servers, now).kept
    branches = []
    for group in reversed(aggregate(jobs, placed, mirrored, side, now, link_weight)):
        first = jobs[group.members[0]]
        receiver = side.find_sender(group, jobs)
        arrivals, onward = [], []
        for server, size in zip(side.servers, first.sizes, strict=True):
            arrivals.append(network.fill(server, receiver, size, now))
            network.reserve(server, receiver, arrivals[-1])
        if group.aggregator is not None:
            ready = max(get_end(schedule, now) for schedule in arrivals)
            for index in group.members:
                onward.append(network.fill(receiver, jobs[index].host, sum(jobs[index].sizes), ready))
                network.reserve(receiver, jobs[index].host, onward[-1])
        branches.append(Branch(group.members, group.aggregator, arrivals, onward))
    return branches
