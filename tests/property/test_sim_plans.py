"""Collectives in virtual time: no link carries more than it can, no byte is lost, and no time is below what links allow."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import OPERATIONS, Collective, Plan, Program, Step, StepKind
from sparkdl_comm.collectives.transfers import order_transfers
from sparkdl_comm.errors import PlanError
from sparkdl_comm.sim.engine import Engine, Flow, share
from sparkdl_comm.sim.network import Network
from sparkdl_comm.sim.plan_run import round_up_count, simulate
from sparkdl_comm.topology import Topology
from tests.draws import examples

TOPOLOGIES = (
    "star:3",
    "star:5",
    "bcube:2,2",
    "bcube:2x3",
    "bcube:3,2",
    "hosts:1x3",
    "hosts:2x2",
    "hosts:3x2",
    "fattree:2",
    "fattree:2,oversub=2",
)
#: What sums of floats may be off by, as a share.
ROUNDING = 1e-6


@st.composite
def flows(draw):
    capacities = draw(st.lists(st.floats(0.5, 8), min_size=1, max_size=6))
    paths = draw(
        st.lists(
            st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=3, unique=True), min_size=1, max_size=8
        )
    )
    limits = st.one_of(st.just(math.inf), st.floats(0.1, 8))
    return capacities, [Flow(tuple(path), 1.0, draw(limits), lambda: None) for path in paths]


@given(flows())
def test_shares_are_max_min_fair(drawn):
    capacities, sharing = drawn
    share(sharing, capacities)
    loads = [sum(flow.rate for flow in sharing if link in flow.path) for link in range(len(capacities))]
    assert all(load <= capacity * (1 + ROUNDING) for load, capacity in zip(loads, capacities, strict=True))
    for flow in sharing:
        full = [link for link in flow.path if loads[link] >= capacities[link] * (1 - ROUNDING)]
        fastest = [max(other.rate for other in sharing if link in other.path) for link in full]
        assert flow.rate >= flow.limit * (1 - ROUNDING) or any(
            flow.rate >= rate * (1 - ROUNDING) for rate in fastest
        ), "it could have more without taking from one that has less"


@st.composite
def plans(draw):
    topology = Topology.parse(draw(st.sampled_from(TOPOLOGIES)))
    operation = draw(st.sampled_from(OPERATIONS))
    names = [a.name for a in ALGORITHMS.values() if operation in a.operations and not a.why_ineligible(topology)]
    collective = Collective(operation, topology, draw(st.integers(1, 40)), block=draw(st.integers(3, 9)))
    betas = tuple(draw(st.floats(0.5, 3)) for _ in range(topology.rails))
    cost = Cost(betas, alpha=draw(st.floats(0, 2)), gamma=draw(st.floats(0, 1)), local=draw(st.floats(0.1, 3)))
    return make_plan(draw(st.sampled_from(names)), collective), cost


@examples(50, 1500)
@given(plans(), st.floats(0, 2), st.integers(1, 3))
def test_bytes_and_times_are_possible(drawn, latency, calls):
    plan, cost = drawn
    topology = plan.collective.topology
    found = simulate(plan, cost, 4, latency=latency, calls=calls, coalesce=False)
    done = order_transfers(plan)
    assert found.sent == calls * 4 * sum(transfer.elements for transfer in done)
    network = Network(Engine(), topology, cost)
    wanted, started = Counter(), Counter()
    for transfer in done:
        path = network.path(transfer.source, transfer.target, transfer.rail)
        wanted.update(dict.fromkeys(path, calls * 4 * transfer.elements))
        started[transfer.source, transfer.rail] += calls
    assert found.carried == pytest.approx([wanted[link] for link in range(len(found.capacities))])
    for link, carried in enumerate(found.carried):
        assert carried <= found.capacities[link] * found.seconds * (1 + ROUNDING)
    assert found.seconds >= max((count * cost.alpha for count in started.values()), default=0) * (1 - ROUNDING)
    assert simulate(plan, cost, 4, latency=latency, calls=calls, coalesce=False) == found


@examples(30, 800)
@given(
    st.sampled_from(["star:4", "star:6", "bcube:2,2", "bcube:3,2", "bcube:2x3"]),
    st.sampled_from(OPERATIONS),
    st.integers(1, 60),
    st.integers(1, 2),
    st.data(),
)
def test_one_rank_stands_for_those_that_are_like_it(text, operation, count, calls, data):
    topology = Topology.parse(text)
    names = [a.name for a in ALGORITHMS.values() if operation in a.operations and not a.why_ineligible(topology)]
    name = data.draw(st.sampled_from(names))
    plan = make_plan(name, Collective(operation, topology, round_up_count(topology, count), block=7))
    cost = Cost((1.0,) * topology.rails, alpha=0.3, gamma=0.1)
    alike, all_of_them = (simulate(plan, cost, 4, latency=0.2, calls=calls, coalesce=way) for way in (True, False))
    assert all_of_them.simulated == topology.world
    if (name, text[:4]) == ("ring", "star") or (name, text) in (("bml", "bcube:2,2"), ("bml", "bcube:3,2")):
        assert alike.simulated == 1
    assert alike.sent == all_of_them.sent
    assert alike.ends == pytest.approx(all_of_them.ends)


@example(256, 1)
@given(st.integers(2, 7), st.integers(1, 5))
def test_a_ring_takes_its_formula(world, part):
    cost, latency = Cost((2.0,), alpha=0.5, gamma=0.25), 0.125
    count = world * part
    found = simulate(make_plan("ring", _all_reduce(f"star:{world}", count)), cost, 4, latency=latency)
    nbytes = 4 * part
    steps = 2 * (world - 1) * (cost.alpha + nbytes * cost.betas[0] + latency)
    assert found.seconds == pytest.approx(steps + (world - 1) * cost.gamma * nbytes)


@given(st.sampled_from([(2, 2), (3, 2), (2, 3)]), st.integers(1, 3))
def test_bml_takes_its_formula(shape, part):
    bml_takes_its_formula(*shape, part)


@pytest.mark.slow
def test_bml_takes_its_formula_on_1024_ranks():
    bml_takes_its_formula(32, 2, 1)


def bml_takes_its_formula(ports, levels, part):
    world = ports**levels
    cost = Cost((2.0,) * levels, alpha=0.5, gamma=0.0)
    plan = make_plan("bml", _all_reduce(f"bcube:{ports},{levels}", levels * world * part))
    sent = 2 * (world - 1) * part * 4 * cost.betas[0]
    found = simulate(plan, cost, 4)
    assert found.seconds == pytest.approx(sent + 2 * levels * (ports - 1) * cost.alpha)
    assert found.simulated == 1, "all ranks are alike"


@example(1024, 2)
@given(st.integers(2, 6), st.integers(1, 6))
def test_a_pipeline_takes_its_formula(world, blocks):
    cost, block = Cost((2.0,), alpha=0.5), 3
    collective = Collective("broadcast", Topology.parse(f"star:{world}"), blocks * block, block=block)
    found = simulate(make_plan("lp", collective), cost, 4)
    assert found.seconds == pytest.approx((world - 2 + blocks) * (cost.alpha + 4 * block * cost.betas[0]))


def test_ranks_of_a_host_share_its_nic():
    topology = Topology.parse("hosts:2x3")
    program = [Step(StepKind.SEND, 3, 0, 0, 10)], [Step(StepKind.SEND, 4, 0, 0, 10)], [Step(StepKind.SEND, 5, 0, 0, 10)]
    receives = [[Step(StepKind.RECEIVE, rank, 0, 0, 10)] for rank in range(3)]
    programs = [Program(tuple(steps)) for steps in (*program, *receives)]
    plan = Plan("by hand", Collective("all_gather", topology, 10), programs.__getitem__)
    assert simulate(plan, Cost((2.0,), alpha=0.5), 1).ends == pytest.approx([60.5] * 6)
    aside = replace(plan, program=lambda rank: Program(()) if rank in (1, 4) else programs[rank])
    assert simulate(aside, Cost((2.0,), alpha=0.5), 1).ends == pytest.approx([40.5, 0, 40.5, 40.5, 0, 40.5])


def test_a_switch_queues_what_two_send_to_one_and_the_senders_go_on():
    steps = [
        [Step(StepKind.SEND, 2, 0, 0, 10), Step(StepKind.SEND, 3, 0, 0, 10)],
        [Step(StepKind.SEND, 2, 0, 0, 10)],
        [Step(StepKind.RECEIVE, 0, 0, 0, 10), Step(StepKind.RECEIVE, 1, 0, 0, 10)],
        [Step(StepKind.RECEIVE, 0, 0, 0, 10)],
    ]
    collective = Collective("all_gather", Topology.parse("star:4"), 10)
    plan = Plan("by hand", collective, lambda rank: Program(tuple(steps[rank])))
    cost = Cost((1.0,), alpha=0.0)
    assert simulate(plan, cost, 1, queue=10.0).ends == pytest.approx([20, 10, 20, 20])
    assert simulate(plan, cost, 1, queue=4.0).ends == pytest.approx([22, 12, 20, 22]), "6 bytes pass, at half the rate"
    assert simulate(plan, cost, 1, queue=0.0).ends == pytest.approx([30, 20, 20, 30])


def test_a_trunk_that_is_too_narrow_limits():
    wide, narrow = (
        simulate(make_plan("p2p-ps", _all_reduce(text, 16, block=16)), Cost((1.0,), alpha=0.0), 1)
        for text in ("fattree:4", "fattree:4,oversub=4")
    )
    assert narrow.seconds > wide.seconds * 1.5
    assert len(narrow.capacities) > len(wide.capacities)


def test_what_cannot_be_run_is_refused():
    topology = Topology.parse("star:2")

    def of(*programs: tuple[Step, ...]) -> Plan:
        return Plan("by hand", Collective("all_gather", topology, 2), lambda rank: Program(programs[rank]))

    alone = of((Step(StepKind.SEND, 1, 0, 0, 1),), ())
    with pytest.raises(PlanError, match="rank 0 has 1 steps with rank 1 over rail 0, which has 0"):
        simulate(alone, Cost((1.0,)))
    waiting = tuple(
        (Step(StepKind.RECEIVE, 1 - rank, 0, 0, 1), Step(StepKind.SEND, 1 - rank, 0, 0, 1)) for rank in range(2)
    )
    with pytest.raises(PlanError, match="wait for each other"):
        simulate(of(*waiting), Cost((1.0,)))
    apart = Plan("by hand", Collective("all_gather", Topology.parse("bcube:2,2"), 1), _straight_across)
    with pytest.raises(PlanError, match="does not reach rank 3 over rail 0"):
        simulate(apart, Cost((1.0, 1.0)))


def _straight_across(rank: int) -> Program:
    kinds = {0: StepKind.SEND, 3: StepKind.RECEIVE}
    return Program((Step(kinds[rank], 3 - rank, 0, 0, 1),) if rank in kinds else ())


def _all_reduce(text: str, count: int, block: int = 1) -> Collective:
    return Collective("all_reduce", Topology.parse(text), count, block=block)
