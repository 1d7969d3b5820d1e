"""The worked examples of the MLfabric paper, with its numbers: Fig. 1 to 6."""

import numpy as np
import pytest

from sparkdl_comm.fabric.core.aggregate import Side, aggregate
from sparkdl_comm.fabric.core.network import ResidualNetwork, fill, get_end, subtract
from sparkdl_comm.fabric.core.order import Job, order
from sparkdl_comm.fabric.core.replication import ReplicationPlan, ReplicationTask
from sparkdl_comm.fabric.core.updates import Divergence
from sparkdl_comm.fabric.params import FabricParams

GAMMA = 0.9


def star(*rates: float) -> ResidualNetwork:
    """Hosts whose links have these rates, in and out."""
    return ResidualNetwork.from_rates((rate, rate) for rate in rates)


def test_fig_1_an_old_update_is_sent_among_the_first_that_keep_its_delay_bound() -> None:
    workers, early, bound, version = 5, 2, 30, 100
    params = FabricParams(f"async:{bound}")
    oldest = version - bound + early
    bases = [version] * (workers - 1) + [oldest]
    # The old update is the largest: those that are shorter all end before it does if nobody says otherwise.
    sizes = [100, 110, 120, 130, 200]
    network, server = star(*[100.0] * workers, 100.0), workers
    plain = order([Job(host, (size,)) for host, size in enumerate(sizes)], network, [server], 0.0)
    assert plain.kept == [0, 1, 2, 3, 4]
    assert version + workers - oldest == bound + (workers - early), "Fig. 1a: the delay bound is violated by N' - u"

    jobs = [
        Job(host, (size,), params.deadline(base, version))
        for host, (size, base) in enumerate(zip(sizes, bases, strict=True))
    ]
    found = order(jobs, network, [server], 0.0)
    assert found.kept == [0, 4, 1, 2, 3], "Fig. 1c: as the last that it may be, the others in the order of their ends"
    assert version + early - oldest == bound
    assert get_end(found.schedules[-1][0], 0.0) == pytest.approx(get_end(plain.schedules[-1][0], 0.0)), (
        "t_N' is the same"
    )


def test_fig_2_an_aggregator_spares_the_server_one_transfer() -> None:
    jobs = [Job(worker, (100,)) for worker in range(4)]
    aggregator, server = 4, 5
    direct = aggregate(jobs, range(4), star(*[100.0] * 6), Side([server], []), 0.0)
    assert [group.done for group in direct] == pytest.approx([1, 2, 3, 4])
    groups = aggregate(jobs, range(4), star(*[100.0] * 6), Side([server], [aggregator]), 0.0)
    assert [(group.members, group.aggregator) for group in groups] == [([0], None), ([1], None), ([2, 3], 0)]
    assert [group.done for group in groups] == pytest.approx([1, 2, 3]), "g3 + g4 are there at t3' = 3 < t4 = 4"


def _lagging() -> Divergence:
    """Server and replica have the same u0, which is their update history h0."""
    state = Divergence(GAMMA)
    state.serve([0], [2.0])
    state.replicate([0])
    return state


def test_fig_3_the_replica_is_nearer_with_one_update_ahead() -> None:
    state = _lagging()
    assert state.bound() == 0
    state.serve([1], [3.0])
    state.serve([2], [5.0])
    assert state.bound() == pytest.approx((GAMMA + GAMMA**2) * 2 + (1 + GAMMA) * 3 + 5), "equation 7"
    state.replicate([1])
    assert state.bound() == pytest.approx(GAMMA**2 * 2 + GAMMA * 3 + 5), "equation 8"


def test_fig_3_the_bound_is_reached_by_parallel_vectors() -> None:
    one = np.ones(4) / 2
    h0, u1, u2 = 2 * one, 3 * one, 5 * one
    server = (GAMMA + GAMMA**2) * h0 + (1 + GAMMA) * u1 + u2
    state = _lagging()
    state.serve([1], [3.0])
    state.serve([2], [5.0])
    assert state.bound() == pytest.approx(np.linalg.norm(server))


def test_fig_3_the_last_transfer_waits_for_the_replica() -> None:
    limit = GAMMA**2 * 2 + GAMMA * 3 + 5
    jobs = [Job(0, (100,)), Job(1, (100,))]
    server, replica = 2, 3
    network = star(100.0, 100.0, 100.0, 100.0)
    network.links[2 * replica + 1] = ((0.0, 5.0, 10.0), (5.0, float("inf"), 100.0))
    groups = aggregate(jobs, [0, 1], network.copy(), Side([server], []), 0.0)
    assert [group.done for group in groups] == pytest.approx([1, 2])

    def plan(limit: float) -> ReplicationPlan:
        updates, sides = [(1, 3.0), (2, 5.0)], (Side([server], []), Side([replica], []))
        return ReplicationTask(jobs, updates, [], network, *sides, _lagging(), limit, 0.0).plan(groups)

    apart = plan(100.0)
    assert (apart.server_groups, apart.replica_groups) == (groups, []), "Fig. 3a: it may lag by both, which are punted"

    near = plan(limit + 1e-9)
    assert [group.members for group in near.replica_groups] == [[0]]
    assert (near.awaited_count, near.replica_groups[0].done) == (1, pytest.approx(5.6)), (
        "40 bytes from 1 s to 5 s, 60 at full rate"
    )
    assert [group.done for group in near.server_groups] == pytest.approx([1, 6.6]), (
        "Fig. 3b: u2 starts when u1 is at the replica"
    )


def test_fig_4_an_update_takes_all_that_is_left_at_every_time() -> None:
    left = ((0.0, 2.0, 5.0), (2.0, 5.0, 2.0), (5.0, float("inf"), 7.0))
    wide = ((0.0, float("inf"), 10.0),)
    schedule = fill(left, wide, 30, 0.0)
    assert get_end(schedule, 0.0) == 7.0, "Fig. 4b: 30 MB, available at 0, are complete at 7"
    assert subtract(left, schedule) == ((7.0, float("inf"), 7.0),), "Fig. 4c"
    assert subtract(wide, schedule) == (
        (0.0, 2.0, 5.0),
        (2.0, 5.0, 8.0),
        (5.0, 7.0, 3.0),
        (7.0, float("inf"), 10.0),
    )


def test_fig_5_an_update_that_would_hold_up_the_server_is_dropped() -> None:
    megabit = 1e6 / 8
    server = 2
    network = star(10 * megabit, 100 * megabit, 100 * megabit)
    slow, fast = Job(0, (12_500_000,), 1), Job(1, (12_500_000,), 5)
    first = network.fill(slow.host, server, slow.sizes[0], 0.0)
    assert get_end(first, 0.0) == pytest.approx(10)
    rest = network.copy()
    rest.reserve(slow.host, server, first)
    second = rest.fill(fast.host, server, fast.sizes[0], 0.0)
    assert get_end(second, 0.0) == pytest.approx(1.1, abs=0.02), "by the 90 Mb/s that are left"

    found = order([slow, fast], network, [server], 0.0)
    assert (found.kept, found.dropped) == ([1], [0])
    assert get_end(found.schedules[0][0], 0.0) == pytest.approx(1), "scheduled at once, with all 100 Mb/s"


def test_fig_6_groups_close_when_the_server_would_run_out() -> None:
    jobs = [Job(worker, (100,)) for worker in range(7)]
    aggregators, server = [7, 8], 9
    groups = aggregate(jobs, range(7), star(*[100.0] * 7, 70.0, 70.0, 100.0), Side([server], aggregators), 0.0)
    assert [group.members for group in groups] == [[0], [1], [2], [3, 4], [5, 6]], "u6 is not in G2"
    assert [group.aggregator for group in groups] == [None, None, None, 0, 1]
    assert groups[3].ready == pytest.approx(200 / 70)
    assert groups[3].ready < groups[2].done < 300 / 70, "u4 and u5 are at the aggregator in time, u6 would not be"
