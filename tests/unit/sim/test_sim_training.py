"""Exchanges of several stages, and steps of training, in virtual time."""

import pytest
from benchmarks.scale.group_run import Group, Stage, hierarchical_top_k, run_stages

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Collective
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.engine import Engine
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import simulate
from sparkdl_comm.sim.profile import Layer, Profile
from sparkdl_comm.sim.step_run import Bucket, ComputeTimings, decoupled_seconds, step_seconds
from sparkdl_comm.topology import Topology

COST = Cost((1.0,), alpha=0.5, gamma=0.0, local=0.25)


def test_a_rank_goes_on_when_its_own_part_is_complete():
    topology = Topology.parse("star:3")
    pair = make_plan("ring", Collective("all_gather", Topology.parse("star:2"), 2))
    stages = [Stage([Group(pair, (0, 2), 1)]), Stage([Group(pair, (1, 2), 1)], computing=10.0), Stage((), 1.0)]
    # Ranks 0 and 2 take 1.5 s, then 2 computes, while 1, which is in no group of the first stage, waits for it.
    assert run_stages(Network(Engine(), topology, COST), stages) == pytest.approx(1.5 + 10 + 1.5 + 1)


def test_hierarchical_top_k_takes_what_its_stages_take():
    topology, count, density = Topology.parse("hosts:3x2"), 4096, 0.125
    message = SparseFormat.of_density(count // 2, density).nbytes
    inside = 0.5 + 4 * count / 2 * COST.local
    # Two ranks of a host share its NIC; a ring passes on two hosts' messages.
    between = 2 * (0.5 + 2 * message)
    last = 0.5 + 3 * message * COST.local
    found = hierarchical_top_k(topology, count, density, COST, selecting=7.0, adding=3.0)
    assert found == pytest.approx(inside + 7 + between + last + 3, rel=1e-3)
    with pytest.raises(ConfError, match="not 2"):
        hierarchical_top_k(Topology.parse("bcube:2,2"), count, density, COST)


def test_buckets_end_where_parameters_do_and_are_complete_when_their_layers_are():
    layers = [("first", {"weight": [4], "bias": [1]}, 1.0), ("middle", {"weight": [3]}, 2.0), ("last", {"w": [2]}, 4.0)]
    profile = Profile("three", 1, "by hand", tuple(Layer(name, shapes, 1.0, back) for name, shapes, back in layers))
    computing = ComputeTimings.of(profile, 0.5, bucket_bytes=16)
    assert (computing.forward, computing.backward) == (1.5, 3.5)
    assert computing.buckets == (Bucket(5, 3.0), Bucket(5, 3.5))
    assert ComputeTimings.of(profile, 0.5, 16, first_bytes=8).buckets == (
        Bucket(2, 2.0),
        Bucket(4, 3.5),
        Bucket(4, 3.5),
    )


def test_reductions_overlap_backward_and_the_rest_follows_it():
    topology = Topology.parse("star:2")
    one = simulate(make_plan("ring", Collective("all_reduce", topology, 10)), COST).seconds
    computing = ComputeTimings(forward=2.0, backward=120.0, buckets=(Bucket(10, 20.0), Bucket(10, 120.0)), update=3.0)
    assert one < 80
    assert step_seconds("ring", topology, computing, COST) == pytest.approx(122 + one + 3)
    early = ComputeTimings(2.0, 120.0, (Bucket(10, 20.0), Bucket(10, 21.0)), 3.0)
    assert step_seconds("ring", topology, early, COST) == pytest.approx(122 + 3), "all is hidden"


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        ("ring", "star:5"),
        ("bml", "bcube:2,2"),
        ("p2p-ps", "star:4"),
        ("be", "star:4"),
        ("lp", "star:3"),
        ("mst", "star:6"),
    ],
)
def test_ranks_that_are_alike_are_run_as_one(algorithm, text):
    topology = Topology.parse(text)
    cost = Cost((1e-3,) * topology.rails, alpha=0.01, gamma=1e-4, local=1e-4)
    computing = ComputeTimings(1.0, 6.0, (Bucket(700, 1.0), Bucket(90, 1.5), Bucket(700, 4.0), Bucket(13, 6.0)), 0.5)
    together = step_seconds(algorithm, topology, computing, cost)
    each = step_seconds(algorithm, topology, computing, cost, coalesce=False)
    assert together == pytest.approx(each)


EVEN = ComputeTimings(
    forward=12.0, backward=24.0, buckets=tuple(Bucket(24, 2.0 * (one + 1)) for one in range(12)), update=6.0
)


@pytest.mark.parametrize(("algorithm", "text"), [("ring", "star:3"), ("lp", "star:4"), ("bml", "bcube:2,2")])
def test_decoupled_steps_take_computing_or_what_links_carry_and_not_both(algorithm, text):
    topology = Topology.parse(text)
    alone = 36 + 6 / topology.world
    for link in (1e-6, 0.005, 0.02, 0.2):
        cost = Cost((link,) * topology.rails, alpha=0.0, gamma=0.0)
        carried = 2 * (topology.world - 1) / topology.world * 12 * 24 * 4 * link / topology.rails
        bucket = carried / 12
        found = decoupled_seconds(algorithm, topology, EVEN, cost)
        # What a rank updates, and the exchange of one bucket, nothing hides.
        assert max(alone + bucket, carried) * (1 - 1e-9) <= found < alone + carried
        if carried < 6:
            assert found <= alone + 1.3 * bucket


@pytest.mark.parametrize(("algorithm", "text"), [("ring", "star:5"), ("bml", "bcube:3,2"), ("lp", "star:3")])
def test_ranks_that_are_alike_are_run_as_one_with_decoupled_halves(algorithm, text):
    topology = Topology.parse(text)
    cost = Cost((1e-3,) * topology.rails, alpha=0.01, gamma=1e-4, local=1e-4)
    computing = ComputeTimings(1.0, 6.0, (Bucket(700, 1.0), Bucket(90, 1.5), Bucket(700, 4.0), Bucket(13, 6.0)), 0.5)
    together = decoupled_seconds(algorithm, topology, computing, cost)
    assert together == pytest.approx(decoupled_seconds(algorithm, topology, computing, cost, coalesce=False))


def test_decoupled_steps_are_faster_than_all_reduces_where_links_limit():
    topology, cost = Topology.parse("star:3"), Cost((0.05,), alpha=0.0, gamma=0.0)
    assert decoupled_seconds("ring", topology, EVEN, cost) < 0.9 * step_seconds("ring", topology, EVEN, cost)
