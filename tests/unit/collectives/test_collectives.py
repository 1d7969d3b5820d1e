"""Collectives of gangs whose ranks are threads, over real sockets on loopback addresses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.discover import make_local_probe, make_probe, measure_cost
from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.transfers import order_transfers
from sparkdl_comm.topology import Topology
from tests.unit.collective_helpers import conf, in_groups, on_all, vector
from tests.unit.gang_helpers import SECONDS, gang_of


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [
        (t, a)
        for t in ("star:3", "bcube:2,2", "bcube:3x2", "hosts:1x4")
        for a in ALGORITHMS
        if not ALGORITHMS[a].why_ineligible(Topology.parse(t))
    ],
)
def test_all_operations_of_all_algorithms(topology, algorithm):
    world = Topology.parse(topology).world

    def work(group, rank):
        found = {}
        for operation in ALGORITHMS[algorithm].operations:
            found[operation] = group.start(operation, vector(rank), root=world - 1).wait(SECONDS)
        return found

    results = in_groups(topology, algorithm, work)
    total = sum(vector(rank) for rank in range(world))
    for found in results:
        assert torch.equal(found.get("all_reduce", total), total)
        assert torch.equal(found.get("broadcast", vector(world - 1)), vector(world - 1))
    assert torch.equal(results[world - 1].get("reduce", total), total)


@pytest.mark.parametrize("topology", ["star:6", "star:7", "hosts:3x2"])
def test_two_trees_in_many_blocks_from_and_to_any_rank(topology):
    world = Topology.parse(topology).world

    def work(group, rank):
        found = [group.start("all_reduce", vector(rank)).wait(SECONDS)]
        for root in range(world):
            found.append(group.start("broadcast", vector(rank), root=root).wait(SECONDS))
            found.append(group.start("reduce", vector(rank), root=root).wait(SECONDS))
        return found

    total = sum(vector(rank) for rank in range(world))
    for rank, [everywhere, *found] in enumerate(in_groups(topology, "tree", work, block="64B")):
        assert torch.equal(everywhere, total)
        assert all(torch.equal(got, vector(root)) for root, got in enumerate(found[::2]))
        assert torch.equal(found[2 * rank + 1], total)


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [
        (t, a)
        for t in ("star:3", "bcube:2,2", "bcube:2x3,1gbit/9gbit", "hosts:2x2")
        for a in [name for name, algorithm in ALGORITHMS.items() if "all_gather" in algorithm.operations]
        if not ALGORITHMS[a].why_ineligible(Topology.parse(t))
    ],
)
def test_parts_of_equal_length_are_gathered_and_scattered(topology, algorithm):
    world, shapes = Topology.parse(topology).world, [(0,), (1,), (5,), (3, 67)]

    def work(group, rank):
        found = []
        for shape in shapes:
            everybodys = torch.empty(world, *shape)
            group.all_gather(torch.full(shape, float(rank)), everybodys).wait(SECONDS)
            own = torch.empty(shape)
            given = torch.stack([torch.full(shape, 10.0 * rank + other) for other in range(world)])
            group.reduce_scatter(given, own).wait(SECONDS)
            assert torch.equal(given, torch.stack([torch.full(shape, 10.0 * rank + other) for other in range(world)]))
            found.append((everybodys, own))
        return found

    for rank, found in enumerate(in_groups(topology, algorithm, work)):
        for shape, (everybodys, own) in zip(shapes, found, strict=True):
            assert torch.equal(everybodys, torch.stack([torch.full(shape, float(other)) for other in range(world)]))
            assert torch.equal(own, torch.full(shape, 10.0 * sum(range(world)) + rank * world))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_dtypes(dtype):
    count = 70001  # more than is combined at once, and an odd number of bytes
    results = in_groups(
        "star:3", "ring", lambda group, rank: group.start("all_reduce", vector(rank, count, dtype)).wait(SECONDS)
    )
    wanted = sum(vector(rank, count, dtype) for rank in range(3))
    assert all(torch.equal(result, wanted) for result in results)


@pytest.mark.parametrize(("op", "wanted"), [("max", torch.amax), ("min", torch.amin), ("mean", torch.mean)])
def test_ops(op, wanted):
    results = in_groups("star:3", "bml", lambda group, rank: group.start("all_reduce", vector(rank), op).wait(SECONDS))
    vectors = torch.stack([vector(rank) for rank in range(3)])
    torch.testing.assert_close(results, [wanted(vectors, 0)] * 3)


def test_many_collectives_under_way_at_once():
    sizes = [1, 100_000, 0, 17, 300_000, 5]

    def work(group, rank):
        jobs = [group.start("all_reduce", vector(rank, size)) for size in sizes]
        return [job.wait(SECONDS) for job in reversed(jobs)]

    for result in in_groups("bcube:2,2", "bml", work):
        for found, size in zip(reversed(result), sizes, strict=True):
            assert torch.equal(found, sum(vector(rank, size) for rank in range(4)))


def test_results_are_the_same_bits_everywhere_and_every_time():
    def work(group, rank):
        values = torch.randn(10_000, generator=torch.Generator().manual_seed(rank))
        return [group.start("all_reduce", values.clone()).wait(SECONDS) for _ in range(3)]

    runs = [run for result in in_groups("bcube:2x3", "bml", work, block="1KiB") for run in result]
    assert all(torch.equal(run, runs[0]) for run in runs)


def test_auto_takes_what_is_cheapest_for_each_size():
    def work(group, rank):
        for count in (1, 2**18):
            assert torch.equal(group.start("all_reduce", torch.ones(count)).wait(SECONDS), torch.full((count,), 4.0))
        return [prepared.plan.algorithm for prepared in group._prepared.values()]

    small, large = in_groups("star:4,100mbit", "cheapest", work)[0]
    assert small in ("mst", "be")
    assert large in ("torus2d", "ring", "bml", "be")


def test_links_of_unknown_rate_are_measured_once(monkeypatch):
    measured = []

    def counting(*args):
        measured.append(args)
        return measure_cost(*args)

    def work(gang):
        group = CollectiveGroup(gang, "cheapest", conf())
        cost = group.cost
        gang.all_gather(b"", SECONDS)
        group.close()
        return cost

    monkeypatch.setattr("sparkdl_comm.collectives.discover.measure_cost", counting)
    monkeypatch.setattr("sparkdl_comm.collectives.discover._cost_cache", {})
    with gang_of(3) as gangs:
        costs = on_all(gangs, work)
    assert len(measured) == 3
    with gang_of(3) as gangs:
        assert on_all(gangs, work) == costs
    assert len(measured) == 3
    assert costs[0] == costs[1] == costs[2]
    # From a thread to another one of this process, through the kernel: not more than a million bytes in a second.
    assert 0 < costs[0].alpha < 1
    assert 0 < costs[0].betas[0] < 1e-6
    assert 0 < costs[0].gamma < 1e-7


@given(st.sampled_from(["star:1", "star:4", "bcube:3,2", "bcube:2x3", "hosts:3x2", "fattree:4"]))
def test_the_probes_of_links_meet(text):
    topology = Topology.parse(text)
    for rail in range(topology.rails):
        found = order_transfers(make_probe(topology, rail, 8))
        assert len(found) == (len(topology.hosts) if topology.radices[rail] > 1 else 0)
        assert len({t.target for t in found}) == len(found)


@pytest.mark.parametrize("text", ["hosts:3x2", "hosts:1x4"])
def test_the_probe_inside_hosts_stays_there(text):
    topology = Topology.parse(text)
    found = order_transfers(make_local_probe(topology, 8))
    assert len({transfer.target for transfer in found}) == topology.world
    assert all(topology.host_of(transfer.source) is topology.host_of(transfer.target) for transfer in found)


def test_the_cost_inside_a_host_is_measured():
    costs = in_groups("hosts:2x2", "ring", lambda group, rank: group.cost)
    assert costs[0].local != Cost((1.0,)).local
    assert len(set(costs)) == 1
