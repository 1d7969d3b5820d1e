"""Ordering, grouping and distribution in the fabric: properties on drawn networks, and searches of tiny cases."""

import itertools
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdl_comm.fabric.core.aggregate import Group, Side, aggregate, deliver, distribute
from sparkdl_comm.fabric.core.network import ResidualNetwork, Spans, get_end, make_idle_link
from sparkdl_comm.fabric.core.order import Job, order
from tests.draws import examples

from .fabric_checks import SIZES, check_flows, flows_of, networks

HOSTS = 6


@st.composite
def batches(draw: st.DrawFn, servers: int, most: int = 8, deadlines: bool = True) -> list[Job]:
    drawn = st.none() | st.integers(-1, most + 2) if deadlines else st.none()
    sizes = st.tuples(*[SIZES] * servers)
    return draw(st.lists(st.builds(Job, st.integers(0, HOSTS - 1), sizes, drawn), max_size=most))


@given(st.data(), st.integers(1, 3))
def test_order_keeps_deadlines_and_links(data: st.DataObject, servers: int) -> None:
    network, jobs = data.draw(networks(HOSTS)), data.draw(batches(servers))
    hosts = data.draw(st.permutations(range(HOSTS)))[:servers]
    found = order(jobs, network, hosts, 0.0)
    assert sorted(found.kept + found.dropped) == list(range(len(jobs)))
    for position, index in enumerate(found.kept, 1):
        deadline = jobs[index].deadline
        assert deadline is None or position <= deadline
    check_flows(
        network,
        [
            (jobs[index].host, server, size, 0.0, schedule)
            for index, schedules in zip(found.kept, found.schedules, strict=True)
            for server, size, schedule in zip(hosts, jobs[index].sizes, schedules, strict=True)
        ],
    )


def reserved(rates: dict[int, tuple[float, float]], source: int, target: int, spans: Spans) -> ResidualNetwork:
    """Links of 1 byte per second, other ``rates`` by host, and one transfer that has its reservation."""
    network = ResidualNetwork.from_rates([rates.get(host, (1.0, 1.0)) for host in range(HOSTS)])
    network.reserve(source, target, spans)
    return network


@given(networks(HOSTS), batches(1, deadlines=False))
# Of equal transfers: host 1's link is taken from second 10 to 20, so the second one ends at 20 or 30.
@example(reserved({2: (2.0, 1.0)}, 1, 3, ((10.0, 20.0, 1.0),)), [Job(1, (10,)), Job(2, (10,))])
@example(
    reserved({0: (1.0, 5.0), 2: (5.0, 1.0), 4: (6.0, 1.0)}, 2, 1, ((2.0, 12.0, 1.0),)), [Job(2, (10,)), Job(4, (10,))]
)
def test_order_without_deadlines_is_shortest_transfer_first(network: ResidualNetwork, jobs: list[Job]) -> None:
    """Algorithm 1: no transfer that is left would end before the one that is next. Of equal ones, any may be next."""
    found = order(jobs, network, [0], 0.0)
    assert sorted(found.kept) == list(range(len(jobs)))
    left = set(range(len(jobs)))
    for index, (schedule,) in zip(found.kept, found.schedules, strict=True):
        soonest = min(get_end(network.fill(jobs[other].host, 0, jobs[other].sizes[0], 0.0), 0.0) for other in left)
        assert get_end(schedule, 0.0) == pytest.approx(soonest, rel=1e-9)
        network.reserve(jobs[index].host, 0, schedule)
        left.remove(index)


@given(st.data())
def test_as_many_updates_keep_their_deadlines_as_can(data: st.DataObject) -> None:
    """All hosts are alike, so no update would hold up the server."""
    jobs = data.draw(batches(1, most=6))
    found = order(jobs, ResidualNetwork.from_rates([(1e9, 1e9)] * (HOSTS + 1)), [HOSTS], 0.0)

    def all_in_time(chosen: tuple[Job, ...]) -> bool:
        bounds = sorted(job.deadline for job in chosen if job.deadline is not None)
        return all(position <= bound for position, bound in enumerate(bounds, 1))

    most = max(count for count in range(len(jobs) + 1) if any(map(all_in_time, combinations(jobs, count))))
    assert len(found.kept) == most


def test_no_update_is_lost_to_another_with_the_same_deadline() -> None:
    """Algorithm 2 as it is printed takes one of them at position 2, where the other cannot be any more."""
    jobs = [Job(0, (10,)), Job(1, (30,), 2), Job(2, (30,), 2)]
    found = order(jobs, ResidualNetwork.from_rates([(10.0, 10.0)] * 4), [3], 0.0)
    assert (sorted(found.kept[:2]), found.kept[2], found.dropped) == ([1, 2], 0, [])


def exhaustive(
    jobs: list[Job], network: ResidualNetwork, servers: list[int], aggregators: list[int], link_weight: float
) -> tuple[float, float]:
    """All cases, one after the other: what :func:`worth` says of the best."""
    if not aggregators or not jobs:
        return worth(summed(jobs, network, servers, aggregators, len(jobs), 0.0), network, servers, link_weight)
    cases = [(straight, 0.0) for straight in range(len(jobs) + 1)]
    for number in (1, 2)[: len(jobs) - 1]:
        alone = summed(jobs[:number], network, servers, [], number, 0.0)
        cases.append((0, alone[-1].done))
    return min(
        worth(summed(jobs, network, servers, aggregators, *case), network, servers, link_weight) for case in cases
    )


def worth(groups: list[Group], network: ResidualNetwork, servers: list[int], link_weight: float) -> tuple[float, float]:
    """The end, and what the time counts for that the busiest server's link is taken; then the updates' ends, summed."""
    if not groups:
        return 0.0, 0.0
    taken = [0.0] * len(servers)
    for group in groups:
        for number, server in enumerate(servers):
            sent = sum(rate * (stop - begin) for begin, stop, rate in group.deliveries[number])
            taken[number] += sent / fastest(network, 2 * server + 1)
    return groups[-1].done + link_weight * max(taken), sum(group.done * len(group.members) for group in groups)


def fastest(network: ResidualNetwork, link: int) -> float:
    return max(rate for _, _, rate in network.links[link])


def summed(
    jobs: list[Job],
    network: ResidualNetwork,
    servers: list[int],
    aggregators: list[int],
    straight: int,
    patience: float,
) -> list[Group]:
    """Algorithm 3 for one case: so many go straight, and the first sum may be complete at ``patience``."""
    trial, groups, left, free = network.copy(), [], list(range(len(jobs))), list(range(len(aggregators)))
    for _ in range(straight):
        group = Group([left.pop(0)])
        deliver(group, jobs, trial, Side(servers, aggregators), groups[-1].done if groups else 0.0)
        groups.append(group)
    while left and free:
        source = jobs[left[0]].host

        def seconds(number: int, source: int = source) -> float:
            host = aggregators[number]
            out, into = fastest(network, 2 * host), fastest(network, 2 * host + 1)
            return (source != host and 1 / min(fastest(network, 2 * source), into)) + 1 / into + 1 / out

        near = [number for number in free if aggregators[number] == source]
        chosen = min([*near[:1], free[0]], key=seconds)
        free.remove(chosen)
        latest = max(patience, groups[-1].done if groups else 0.0)
        group = Group([], chosen)
        while left:
            job = jobs[left[0]]
            schedule = trial.fill(job.host, aggregators[chosen], sum(job.sizes), 0.0)
            if get_end(schedule, 0.0) > latest + 1e-9 and group.members and free:
                break
            trial.reserve(job.host, aggregators[chosen], schedule)
            group.members.append(left.pop(0))
            group.ready = max(group.ready, get_end(schedule, 0.0))
        deliver(group, jobs, trial, Side(servers, aggregators), groups[-1].done if groups else 0.0)
        groups.append(group)
        patience = 0.0
    return groups


@examples(60, 2000)
@given(st.data(), st.integers(1, 2), st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0]))
def test_groups_are_the_best_of_all_cases(data: st.DataObject, servers: int, relays: int, link_weight: float) -> None:
    network, jobs = data.draw(networks(HOSTS)), data.draw(batches(servers, deadlines=False))
    hosts = data.draw(st.permutations(range(HOSTS)))[:servers]
    aggregators = data.draw(st.permutations(range(HOSTS)))[:relays]
    left = network.copy()
    groups = aggregate(jobs, range(len(jobs)), left, Side(hosts, aggregators), 0.0, link_weight)
    assert [index for group in groups for index in group.members] == list(range(len(jobs))), "the order is kept"
    assert all(before.done <= after.done for before, after in itertools.pairwise(groups))
    check_flows(network, flows_of(jobs, groups, hosts, aggregators, 0.0), left)
    best = exhaustive(jobs, network, hosts, aggregators, link_weight)
    assert worth(groups, network, hosts, link_weight) == pytest.approx(best)


def test_a_group_is_summed_beside_its_first_update_if_links_there_are_fast() -> None:
    jobs = [Job(host, (100,)) for host in (3, 2, 0)]
    even = ResidualNetwork.from_rates([(100.0, 100.0)] * 5)
    groups = aggregate(jobs, range(3), even, Side([4], [0, 1, 2, 3]), 0.0)
    assert [(group.members, group.aggregator) for group in groups] == [([0], None), ([1, 2], 2)]
    assert groups[1].arrivals[0] == (), "update 1 is there"
    assert groups[1].done == pytest.approx(2)
    slow = ResidualNetwork.from_rates([(100.0, 100.0)] * 2 + [(100.0, 10.0)] + [(100.0, 100.0)] * 2)
    assert aggregate(jobs, range(3), slow, Side([4], [0, 1, 2, 3]), 0.0)[1].aggregator == 0


def test_a_sum_is_waited_for_if_other_updates_follow() -> None:
    jobs = [Job(host, (100,)) for host in range(4)]
    network = ResidualNetwork.from_rates([(100.0, 100.0)] * 5)
    alone = aggregate(jobs, range(4), network.copy(), Side([4], range(4)), 0.0)
    assert [group.members for group in alone] == [[0], [1, 2], [3]]
    before_others = aggregate(jobs, range(4), network.copy(), Side([4], range(4)), 0.0, link_weight=0.8)
    assert [group.members for group in before_others] == [[0, 1], [2, 3]]
    assert before_others[-1].done == pytest.approx(alone[-1].done)


@given(st.data(), st.integers(1, 2), st.integers(0, 3))
def test_everybody_gets_the_model(data: st.DataObject, servers: int, relays: int) -> None:
    network = data.draw(networks(HOSTS))
    sizes = data.draw(st.tuples(*[SIZES] * servers))
    jobs = [Job(host, sizes) for host in data.draw(st.lists(st.integers(0, HOSTS - 1), max_size=8))]
    hosts = data.draw(st.permutations(range(HOSTS)))[:servers]
    distributors = data.draw(st.permutations(range(HOSTS)))[:relays]
    left = network.copy()
    branches = distribute(jobs, left, Side(hosts, distributors), 0.0)
    assert sorted(index for branch in branches for index in branch.members) == list(range(len(jobs)))
    flows = []
    for branch in branches:
        receiver = jobs[branch.members[0]].host
        if branch.distributor is not None:
            receiver = distributors[branch.distributor]
        ready = max(get_end(schedule, 0.0) for schedule in branch.arrivals)
        for server, size, schedule in zip(hosts, sizes, branch.arrivals, strict=True):
            flows.append((server, receiver, size, 0.0, schedule))
        for index, schedule in zip(branch.members, branch.onward, strict=branch.distributor is not None):
            flows.append((receiver, jobs[index].host, sum(sizes), ready, schedule))
    check_flows(network, flows, left)


def test_a_tree_is_faster_than_one_link() -> None:
    jobs = [Job(host, (100,)) for host in range(8)]
    network = ResidualNetwork.from_rates([(100.0, 100.0)] * 9)
    branches = distribute(jobs, network, Side([8], [0, 1, 2]), 0.0)
    assert max(get_end(s, 0.0) for branch in branches for s in [*branch.arrivals, *branch.onward]) < len(jobs)


@examples(50)
@given(networks(HOSTS), batches(1, most=5, deadlines=False))
def test_no_order_is_better_where_only_the_servers_link_is_narrow(network: ResidualNetwork, jobs: list[Job]) -> None:
    """Compare the mean end with all permutations. Elsewhere an order that looks ahead can be better by any factor."""
    network.links[2::2] = [make_idle_link(10.0)] * (HOSTS - 1)

    def mean(chosen: Sequence[int]) -> float:
        trial, ends = network.copy(), [0.0]
        for index in chosen:
            schedule = trial.fill(jobs[index].host, 0, jobs[index].sizes[0], 0.0)
            trial.reserve(jobs[index].host, 0, schedule)
            ends.append(get_end(schedule, 0.0))
        return sum(ends) / len(ends)

    found = order(jobs, network, [0], 0.0)
    assert mean(found.kept) == pytest.approx(min(map(mean, permutations(range(len(jobs))))))
