"""Every plan, on paper: it ends, with the exact result, and moves the bytes that the papers say."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.algorithms.tree import first_steps
from sparkdl_comm.collectives.plan import OPERATIONS, Collective, StepKind
from sparkdl_comm.collectives.transfers import count_sent_elements, order_transfers
from sparkdl_comm.topology import Topology
from tests.draws import examples

TOPOLOGIES = st.one_of(
    st.integers(1, 10).map("star:{}".format),
    st.sampled_from(["bcube:2,2", "bcube:3,2", "bcube:2,3", "bcube:2x3", "bcube:3x2", "bcube:2x3x2", "bcube:4x2"]),
    st.sampled_from(["bcube:3,2,2gbit/1gbit", "bcube:2x3,1gbit/9gbit", "bcube:2,3,1gbit/2gbit/3gbit"]),
    st.tuples(st.integers(1, 4), st.integers(2, 4)).map(lambda t: f"hosts:{t[0]}x{t[1]}"),
    st.just("fattree:4"),
).map(Topology.parse)


@st.composite
def collectives(draw, operation):
    topology = draw(TOPOLOGIES)
    count = draw(st.integers(0, 120))
    root = draw(st.integers(0, topology.world - 1)) if operation in ("broadcast", "reduce") else 0
    return Collective(operation, topology, count, root, draw(st.integers(1, 40)))


def plans_of(collective):
    for algorithm in ALGORITHMS.values():
        if collective.operation in algorithm.operations and not algorithm.why_ineligible(collective.topology):
            plan = make_plan(algorithm.name, collective)
            assert plan.algorithm == algorithm.name, "the name in Plan(...) is that in Algorithm(...)"
            yield plan


def run_in_memory(plan, memory, combine):
    """Run all steps of the plan on ``memory[rank]``, a numpy array of the rank's vector and scratch memory."""
    for transfer in order_transfers(plan):
        sent = memory[transfer.source][transfer.send.start : transfer.send.stop]
        target = memory[transfer.target][transfer.receive.start : transfer.receive.stop]
        target[:] = combine(target, sent) if transfer.receive.kind is StepKind.COMBINE else sent


def vectors(plan, seed=0):
    """Vector and scratch of each rank; the scratch with a content that must not come through."""
    random = np.random.default_rng(seed)
    count, world = plan.collective.count, plan.collective.world
    return [
        np.concatenate([random.integers(-999, 999, count), np.full(plan.program(rank).scratch, 10**6)])
        for rank in range(world)
    ]


def expected(plan, before, rank):
    """The rank's vector afterwards: as a masked array, of which only what is not masked is promised."""
    operation, count, root = plan.collective.operation, plan.collective.count, plan.collective.root
    vectors = np.stack([memory[:count] for memory in before])
    total = np.ma.array(vectors.sum(0), mask=False)
    if operation == "broadcast":
        return vectors[root]
    if operation == "reduce" and rank != root:
        total.mask = True
    if operation == "reduce_scatter":
        total.mask = True
        for start, stop in plan.owned_ranges(rank):
            total.mask[start:stop] = False
    if operation == "all_gather":
        for owner in range(plan.collective.world):
            for start, stop in plan.owned_ranges(owner):
                total[start:stop] = vectors[owner, start:stop]
    return total


@pytest.mark.parametrize("operation", OPERATIONS)
@examples(15, 300)
@given(st.data())
def test_every_plan_gives_the_exact_result(operation, data):
    for plan in plans_of(data.draw(collectives(operation))):
        memory = vectors(plan)
        before = [vector.copy() for vector in memory]
        run_in_memory(plan, memory, np.add)
        for rank, vector in enumerate(memory):
            wanted = expected(plan, before, rank)
            assert np.ma.allequal(wanted, vector[: plan.collective.count], fill_value=True), f"{plan}, rank {rank}"


@examples(30)
@given(collectives("reduce_scatter"))
def test_every_element_has_one_owner(collective):
    for plan in plans_of(collective):
        owners = Counter(
            i for rank in range(collective.world) for bounds in plan.owned_ranges(rank) for i in range(*bounds)
        )
        assert owners == Counter(range(collective.count))


@examples(10, 300)
@given(collectives("all_reduce"))
def test_results_are_the_same_bits_on_all_ranks(collective):
    for plan in plans_of(collective):
        random = np.random.default_rng(1)
        size = [collective.count + plan.program(rank).scratch for rank in range(collective.world)]
        memory = [random.standard_normal(s).astype(np.float32) for s in size]
        run_in_memory(plan, memory, np.add)
        assert len({vector[: collective.count].tobytes() for vector in memory}) == 1, plan


def floats(collective, *plans):
    """Vector and scratch of each rank, for any of the plans; the vectors are those of the collective, each time."""
    random = np.random.default_rng(2)
    found = []
    for rank in range(collective.world):
        scratch = max(plan.program(rank).scratch for plan in plans)
        found.append(np.append(random.standard_normal(collective.count), np.zeros(scratch)).astype(np.float32))
    return found


@examples(8, 300)
@given(collectives("all_reduce"))
def test_two_halves_make_an_all_reduce_bit_by_bit(collective):
    """A rank owns the same ranges in both, so it may change them in between."""
    scatters, gathers = (plans_of(replace(collective, operation=half)) for half in ("reduce_scatter", "all_gather"))
    for scatter, gather in zip(scatters, gathers, strict=True):
        whole = make_plan(scatter.algorithm, collective)
        for rank in range(collective.world):
            assert scatter.owned_ranges(rank) == gather.owned_ranges(rank), f"{scatter}, rank {rank}"
        if scatter.algorithm == "lp":  # its all-reduce adds along one chain, whoever owns what
            continue
        at_once, in_halves = floats(collective, whole), floats(collective, scatter, gather)
        run_in_memory(whole, at_once, np.add)
        run_in_memory(scatter, in_halves, np.add)
        run_in_memory(gather, in_halves, np.add)
        for one, other in zip(at_once, in_halves, strict=True):
            assert one[: collective.count].tobytes() == other[: collective.count].tobytes(), scatter


def all_reduce(name, text, count, **changes):
    return make_plan(name, Collective("all_reduce", Topology.parse(text), count, **changes))


@examples(20)
@given(st.sampled_from(["bml", "ring", "be", "p2p-ps", "torus2d"]), st.integers(1, 9), st.integers(1, 12))
def test_on_one_switch_nobody_sends_more_than_necessary(name, world, scale):
    sent = count_sent_elements(order_transfers(all_reduce(name, f"star:{world}", world * scale)))
    assert set(sent.values()) == ({2 * (world - 1) * scale} if world > 1 else set())


@examples(20)
@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 3))
def test_bml_sends_the_same_over_every_rail(n, k, scale):
    if n**k > 30:
        return
    world = n**k
    sent = count_sent_elements(order_transfers(all_reduce("bml", f"bcube:{n},{k}", k * world * scale)))
    assert sent == {(rank, rail): 2 * (world - 1) * scale for rank in range(world) for rail in range(k)}


@examples(6, 200)
@given(st.integers(2, 3), st.integers(2, 3), st.integers(1, 2))
def test_a_parameter_server_on_bcube_sends_twice_n_minus_1_nths(n, k, scale):
    count = n * k * n**k * scale
    sent = count_sent_elements(order_transfers(all_reduce("p2p-ps", f"bcube:{n},{k}", count)))
    assert set(sent.values()) == {2 * (n - 1) * count // n}


@examples(20)
@given(st.integers(1, 3), st.integers(2, 4), st.integers(1, 5))
def test_ranks_of_a_host_send_each_other_most(hosts, slots, scale):
    """Between hosts goes 1 / slots of what a flat ring would send."""
    count = hosts * slots * scale
    plan = all_reduce("torus2d", f"hosts:{hosts}x{slots}", count)
    between = Counter()
    for transfer in order_transfers(plan):
        if transfer.source // slots != transfer.target // slots:
            between[transfer.source] += transfer.elements
    assert set(between.values()) == ({2 * (hosts - 1) * scale} if hosts > 1 else set())


@examples(20)
@given(st.sampled_from(["star:2", "star:5", "star:9", "bcube:3,2", "bcube:2x3"]), st.integers(1, 50), st.integers(1, 9))
def test_a_linear_pipeline_sends_the_vector_once_over_each_link(text, count, block):
    topology = Topology.parse(text)
    for operation, times in (("broadcast", {1}), ("reduce", {1}), ("all_reduce", {1, 2})):
        plan = make_plan("lp", Collective(operation, topology, count, block=block))
        sent = Counter()
        for transfer in order_transfers(plan):
            sent[transfer.source] += transfer.elements
            assert transfer.elements <= block
        assert {elements // count for elements in sent.values()} <= times
        assert len(sent) == topology.world - (operation != "all_reduce")


@examples(20)
@given(st.sampled_from(["star:2", "star:5", "star:9", "bcube:3,2", "bcube:2x3"]), st.integers(1, 12), st.integers(1, 9))
def test_linear_pipelines_to_all_ranks_load_all_links_alike(text, part, block):
    topology = Topology.parse(text)
    world = topology.world
    for operation in ("reduce_scatter", "all_gather"):
        plan = make_plan("lp", Collective(operation, topology, world * part, block=block))
        sent, found = Counter(), order_transfers(plan)
        for transfer in found:
            sent[transfer.source, transfer.target] += transfer.elements
            assert transfer.elements <= block
        assert set(sent.values()) == {(world - 1) * part}
        assert len(sent) == world, "each rank sends to one other"


SWITCHES = st.one_of(
    st.integers(1, 35).map("star:{}".format),
    st.tuples(st.integers(1, 9), st.integers(2, 4)).map(lambda t: f"hosts:{t[0]}x{t[1]}"),
    st.just("fattree:4"),
).map(Topology.parse)


@examples(40)
@given(
    SWITCHES, st.sampled_from(["broadcast", "reduce", "all_reduce"]), st.integers(1, 20), st.integers(1, 9), st.data()
)
def test_two_trees_take_no_nic_more_than_the_vector_each_way(topology, operation, half, block, data):
    root = data.draw(st.integers(0, topology.world - 1)) if operation != "all_reduce" else 0
    collective = Collective(operation, topology, 2 * half, root, block)
    out, into = Counter(), Counter()
    speaking = set()
    for transfer in order_transfers(make_plan("tree", collective)):
        assert transfer.elements <= block
        source, target = (topology.host_of(rank).index for rank in (transfer.source, transfer.target))
        if source != target:
            out[source] += transfer.elements
            into[target] += transfer.elements
            speaking |= {transfer.source, transfer.target}
    times = 2 if operation == "all_reduce" else 1
    assert sum(out.values()) == times * (len(topology.hosts) - 1) * collective.count
    assert max([*out.values(), *into.values()], default=0) <= times * collective.count
    assert len(speaking) == (len(topology.hosts) if len(topology.hosts) > 1 else 0), "one rank of each host"


@examples(40)
@given(SWITCHES, st.data())
def test_in_two_trees_every_host_is_a_leaf_of_one_and_takes_turns(topology, data):
    root = data.draw(st.integers(0, topology.world - 1))
    inner, gets, gives = defaultdict(set), defaultdict(list), defaultdict(list)
    for edge, step in first_steps(topology, root).items():
        if topology.host_of(edge.parent) is not topology.host_of(edge.child):
            gets[edge.child].append((edge.tree, step % 2))
            gives[edge.parent].append(step % 2)
            inner[edge.parent].add(edge.tree)
    assert all(len(trees) == 1 for rank, trees in inner.items() if rank != root)
    for rank, found in gets.items():
        trees, turns = zip(*found, strict=True)
        assert (sorted(trees), sorted(turns)) == ([0, 1], [0, 1]), f"rank {rank} has a parent in each, in turns"
    assert all(len(turns) == len(set(turns)) for turns in gives.values())


@examples(20)
@given(collectives("all_reduce"))
def test_every_receive_has_its_send(collective):
    for plan in plans_of(collective):
        kinds = Counter(step.kind for rank in range(collective.world) for step in plan.program(rank).steps)
        assert kinds[StepKind.SEND] == kinds[StepKind.RECEIVE] + kinds[StepKind.COMBINE]


@examples(50)
@given(TOPOLOGIES)
def test_the_cycle_goes_from_neighbour_to_neighbour(topology):
    cycle = topology.cycle()
    assert sorted(cycle) == list(range(topology.world))
    for one, other in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        near = {
            one,
            *topology.local_ranks(one),
            *(r for rail in range(topology.rails) for r in topology.neighbors(one, rail)),
        }
        assert other in near
