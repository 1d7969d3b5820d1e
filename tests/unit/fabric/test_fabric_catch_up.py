"""When the replica gets what was punted."""

from __future__ import annotations

import pytest

from sparkdl_comm.fabric.core.aggregate import Side, aggregate
from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    DroppedUpdate,
    Node,
    Push,
    Roles,
    TransferEnded,
    Update,
)
from sparkdl_comm.fabric.core.network import ResidualNetwork
from sparkdl_comm.fabric.core.order import Job
from sparkdl_comm.fabric.core.replication import ReplicationPlan, ReplicationTask
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.core.updates import Divergence
from sparkdl_comm.fabric.params import FabricParams

SERVER, REPLICA = Node("server", 0), Node("replica", 0)


class Pair:
    """A server with a replica, and two workers, with an aggregator each for the replica; an update takes a link 10 s, and each
    has the norm 1. ``pushes``: all that were decided on."""

    def __init__(self, limit: float) -> None:
        roles = Roles(workers=(0, 1), servers=(2,), replicas=(3,), replica_aggregators=(0, 1))
        self.scheduler = Scheduler(roles, FabricParams("async:30", limit))
        self.pushes: list[Push] = []
        self.dropped: list[DroppedUpdate] = []
        for host in range(4):
            self.scheduler.observe(BandwidthReported(host, 10.0, 10.0), 0.0)

    def ready(self, number: int, now: float) -> None:
        self.scheduler.observe(Update(number, number % 2, (100,), max(0, number - 5), 1.0), now)

    def decide(self, now: float) -> list[Push]:
        decisions = self.scheduler.decide(now)
        self.dropped += [decision for decision in decisions if isinstance(decision, DroppedUpdate)]
        found = [decision for decision in decisions if isinstance(decision, Push)]
        self.pushes += found
        return found

    def end(self, pushes: list[Push], now: float) -> None:
        for push in pushes:
            self.scheduler.observe(TransferEnded(push.id), now)

    def serve(self, count: int) -> None:
        """Serve ``count`` updates, one after the other."""
        for number in range(count):
            self.ready(number, 10.0 * number)
            self.end([push for push in self.decide(10.0 * number) if push.target == SERVER], 10.0 * number + 10)

    def given(self, node: Node) -> list[tuple[int, ...]]:
        return [push.updates for push in self.pushes if push.target == node]


def test_the_replica_gets_nothing_until_half_of_the_bound_is_used() -> None:
    pair = Pair(8.0)
    pair.serve(4)
    assert {push.target for push in pair.pushes} == {SERVER}
    pair.ready(4, 40.0)
    pair.decide(40.0)
    assert pair.given(REPLICA) == [(0, 1, 2, 3)], "one sum of what the server has"
    pair.decide(41.0)
    assert len(pair.given(REPLICA)) == 1, "once"


def test_while_the_replica_catches_up_the_server_goes_on_within_the_bound() -> None:
    pair = Pair(8.0)
    pair.serve(5)
    for number in range(5, 9):
        pair.ready(number, 50.0)
    served = [push for push in pair.decide(50.0) if push.target == SERVER]
    assert sum(len(push.updates) for push in served) == 3, "with them it is 8 ahead"
    pair.end(served, 80.0)
    assert not pair.decide(80.0)
    pair.end([push for push in pair.pushes if push.target != SERVER], 100.0)
    [last] = [push for push in pair.decide(100.0) if push.target == SERVER]
    assert sorted(number for updates in pair.given(SERVER) for number in updates) == list(range(9))
    assert not pair.dropped
    assert len(last.updates) == 1


def test_workers_keep_a_few_updates_only_for_a_large_bound() -> None:
    pair = Pair(1e9)
    pair.serve(16)
    assert [number for updates in pair.given(REPLICA) for number in updates] == list(range(15)), "eight for each worker"


def test_without_a_bound_the_replica_gets_what_there_is_room_for() -> None:
    pair = Pair(float("inf"))
    pair.serve(5)
    assert pair.given(REPLICA)


def test_what_brings_the_replica_nearer_only_later_waits_until_the_servers_are_that_far() -> None:
    jobs = [Job(0, (100,)), Job(1, (100,))]
    network = ResidualNetwork.from_rates([(100.0, 100.0)] * 4)
    servers, replicas = Side([2], [], busy_until=3.0), Side([3], [])
    state = Divergence(0.9)
    state.serve([0, 1, 2], [10.0, 1.0, 1.0])
    state.replicate([0])
    state.replicate([1])
    state.serve([3], [0.1])
    nearer = state.copy()
    nearer.replicate([2])
    limit = 12.0
    assert nearer.bound() < limit < nearer.bound(behind=1), "the replica's momentum takes it too far without update 3"
    groups = aggregate(jobs, [1], network.copy(), Side([2], []), 0.0)

    def planned(steps_under_way: int) -> ReplicationPlan:
        updates, sides = [(2, 1.0), (4, 0.1)], (servers, replicas)
        task = ReplicationTask(jobs, updates, [0], network, *sides, state, limit, 0.0, steps_under_way=steps_under_way)
        return task.plan(groups)

    for found, follows, done in ((planned(0), False, 1.0), (planned(1), True, 4.0)):
        assert [group.members for group in found.replica_groups] == [[0]], "without it update 4 would exceed the limit"
        assert [group.members for group in found.server_groups] == [[1]]
        assert (found.needs_servers_first, found.replica_groups[0].done) == (follows, pytest.approx(done))
