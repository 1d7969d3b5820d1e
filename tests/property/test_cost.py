"""The cost model against a simulation that looks at every NIC in every second."""

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.cost import Cost, critical_path
from sparkdl_comm.collectives.plan import OPERATIONS, Collective, StepKind
from sparkdl_comm.collectives.transfers import order_transfers
from sparkdl_comm.topology import Topology
from tests.draws import examples

TOPOLOGIES = ("star:3", "star:4", "bcube:2,2", "bcube:2x3", "hosts:1x3", "hosts:2x2", "hosts:3x2", "hosts:2x3")


def simulated(done, topology, cost):
    """Whole seconds, one after another; in each, the transfers that can begin do so, in their order."""
    left_at, complete_at = {}, {}  # transfer -> second from which its NICs are free, and in which its result is there
    free_from = {}  # NIC and direction -> second
    second = 0
    while len(complete_at) < len(done):
        for number, transfer in enumerate(done):
            if number in complete_at or any(complete_at.get(other, second + 1) > second for other in transfer.after):
                continue
            here, there = (topology.host_of(rank).index for rank in (transfer.source, transfer.target))
            local = here == there
            before = [
                other
                for other, earlier in enumerate(done)
                if earlier.source == transfer.source
                and earlier.step_index < transfer.step_index
                and (topology.host_of(earlier.target).index == here) == local
                and (local or earlier.rail == transfer.rail)
            ]
            if any(left_at.get(other, second + 1) > second for other in before):
                continue
            if local:
                nics = [("from", transfer.source), ("to", transfer.target)]
            else:
                nics = [("out of", here, transfer.rail), ("into", there, transfer.rail)]
            if any(free_from.get(nic, 0) > second for nic in nics):
                continue
            beta = cost.local if local else cost.betas[transfer.rail]
            left_at[number] = second + cost.alpha + transfer.elements * beta
            added = transfer.elements * cost.gamma if transfer.receive.kind is StepKind.COMBINE else 0
            complete_at[number] = left_at[number] + added
            free_from |= dict.fromkeys(nics, left_at[number])
        second += 1
    return max(complete_at.values(), default=0)


@examples(60)
@given(st.sampled_from(TOPOLOGIES), st.sampled_from(OPERATIONS), st.integers(0, 24), st.integers(3, 9), st.data())
def test_predicted_as_simulated(text, operation, count, block, data):
    topology = Topology.parse(text)
    whole = st.integers(0, 3)
    betas = tuple(1 + data.draw(whole) for _ in range(topology.rails))
    cost = Cost(betas, alpha=data.draw(whole), gamma=data.draw(whole), local=1 + data.draw(whole))
    for algorithm in ALGORITHMS.values():
        if operation in algorithm.operations and not algorithm.why_ineligible(topology):
            done = order_transfers(make_plan(algorithm.name, Collective(operation, topology, count, block=block)))
            assert critical_path(done, topology, 1, cost) == simulated(done, topology, cost), algorithm.name


@examples(30)
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 9))
def test_ranks_of_a_host_take_turns_on_its_nic(hosts, slots, scale):
    """All slots all-reduce between hosts at once, which keeps every NIC busy, so it takes what a host's bytes take."""
    topology = Topology.parse(f"hosts:{hosts}x{slots}")
    count = hosts * slots * scale
    cost = Cost((1.0,), alpha=0.0, gamma=0.0, local=0.0)
    plan = make_plan("torus2d", Collective("all_reduce", topology, count))
    assert critical_path(order_transfers(plan), topology, 1, cost) == 2 * (hosts - 1) * slots * scale
