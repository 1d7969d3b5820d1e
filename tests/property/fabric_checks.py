"""Checks of every schedule of the fabric, without the fabric's own arithmetic, and drawn networks and updates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from sparkdl_comm.fabric.core.aggregate import Group
from sparkdl_comm.fabric.core.network import ResidualNetwork, Spans, get_end
from sparkdl_comm.fabric.core.order import Job

#: Source host, target host, bytes, when they are there, schedule.
Flow = tuple[int, int, float, float, Spans]

RATES = st.sampled_from([1.0, 2.5, 10 / 3, 5.0, 10.0]) | st.floats(1.0, 10.0)
SIZES = st.sampled_from([10, 20]) | st.integers(1, 40)


def carried(link: Spans, moment: float) -> float:
    return sum(rate for begin, stop, rate in link if begin <= moment < stop)


def check_flows(network: ResidualNetwork, flows: Iterable[Flow], left: ResidualNetwork | None = None) -> None:
    """Every flow brings its bytes, not before they are there; no link carries more than was left of it. If ``left`` is
    given, it is what they leave."""
    flows = list(flows)
    for source, target, size, ready, schedule in flows:
        if source == target or size == 0:
            assert schedule == ()
            continue
        assert math.isclose(sum(rate * (stop - begin) for begin, stop, rate in schedule), size, rel_tol=1e-9)
        assert schedule[0][0] >= ready - 1e-12
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(schedule))
    for index, link in enumerate(network.links):
        used = [
            flow[4] for flow in flows if flow[0] != flow[1] and index == (2 * flow[1] + 1 if index % 2 else 2 * flow[0])
        ]
        edges = sorted({edge for spans in [link, *used] for span in spans for edge in span[:2] if edge < math.inf})
        moments = [(one + other) / 2 for one, other in itertools.pairwise(edges) if other - one > 1e-9]
        for moment in [*moments, edges[-1] + 1]:
            taken = sum(carried(schedule, moment) for schedule in used)
            assert taken <= carried(link, moment) * (1 + 1e-9)
            if left is not None:
                assert math.isclose(carried(link, moment) - taken, carried(left.links[index], moment), abs_tol=1e-6)


def flows_of(
    jobs: Sequence[Job], groups: Iterable[Group], servers: Sequence[int], aggregators: Sequence[int], now: float
) -> list[Flow]:
    """The transfers of groups."""
    flows: list[Flow] = []
    for group in groups:
        sender = jobs[group.members[0]].host
        if group.aggregator is not None:
            sender = aggregators[group.aggregator]
            for index, schedule in zip(group.members, group.arrivals, strict=True):
                flows.append((jobs[index].host, sender, sum(jobs[index].sizes), now, schedule))
                assert get_end(schedule, now) <= group.ready
        for number, (server, schedule) in enumerate(zip(servers, group.deliveries, strict=True)):
            size = max(jobs[index].sizes[number] for index in group.members)
            flows.append((sender, server, size, group.ready, schedule))
            assert get_end(schedule, group.ready) <= group.done
    return flows


@st.composite
def networks(draw: st.DrawFn, hosts: int) -> ResidualNetwork:
    """Draw a network of idle or partly reserved links."""
    network = ResidualNetwork.from_rates([(draw(RATES), draw(RATES)) for _ in range(hosts)])
    for _ in range(draw(st.integers(0, 4))):
        source, target = draw(st.integers(0, hosts - 1)), draw(st.integers(0, hosts - 1))
        network.reserve(source, target, network.fill(source, target, draw(SIZES), draw(st.floats(0, 5))))
    return network
