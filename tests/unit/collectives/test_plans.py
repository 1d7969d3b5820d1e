"""Plans against the papers' own examples, and plans that are wrong."""

import sys

import pytest

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.algorithms.bml import thread_shares
from sparkdl_comm.collectives.algorithms.tree import first_steps
from sparkdl_comm.collectives.cost import Cost, critical_path
from sparkdl_comm.collectives.plan import Collective, Plan, Program, Step, StepKind, find_dependencies
from sparkdl_comm.collectives.transfers import order_transfers
from sparkdl_comm.errors import ConfError, InputError, PlanError
from sparkdl_comm.topology import Topology

BCUBE = Topology.parse("bcube:3,2")


def pieces(thread: int, start: int, stop: int) -> set[tuple[int, int, int]]:
    """<e, v1, v0> of the pieces, one element each, in a range of 18 elements: thread 0's come first.

    A thread's pieces lie in the order of the digit that it works on first.
    """
    found = set()
    for place in range(start - 9 * thread, stop - 9 * thread):
        first, second = divmod(place, 3)
        found.add((thread, second, first) if thread == 0 else (thread, first, second))
    return found


def test_bml_sends_the_pieces_of_the_papers_figure_4():
    """Thread 0 of server [0,0]."""
    steps = make_plan("bml", Collective("all_reduce", BCUBE, 18)).program(0).steps
    mine = [step for step in steps if step.start < 9]
    sent = [(step.peer, step.rail, pieces(0, *step[3:])) for step in mine if step.kind is StepKind.SEND]
    combined = [(step.peer, step.rail, pieces(0, *step[3:])) for step in mine if step.kind is StepKind.COMBINE]
    at_first = [{(0, v1, digit) for v1 in range(3)} for digit in range(3)]
    assert sent[:2] == [(1, 0, at_first[1]), (2, 0, at_first[2])]
    assert combined[:2] == [(2, 0, at_first[0]), (1, 0, at_first[0])]
    assert sent[2:4] == [(3, 1, {(0, 1, 0)}), (6, 1, {(0, 2, 0)})]
    assert combined[2:] == [(6, 1, {(0, 0, 0)}), (3, 1, {(0, 0, 0)})]
    # The broadcast in the reverse order: 2 pieces, then 6.
    assert [(peer, rail) for peer, rail, _ in sent[4:]] == [(3, 1), (6, 1), (1, 0), (2, 0)]
    assert [len(piece) for *_, piece in sent[4:]] == [1, 1, 3, 3]


def test_bmls_threads_use_different_rails_in_every_step():
    steps = make_plan("bml", Collective("all_reduce", Topology.parse("bcube:2,3"), 24)).program(5).steps
    sends = [step for step in steps if step.kind is StepKind.SEND]
    for stage in range(6):
        assert {step.rail for step in sends[3 * stage : 3 * stage + 3]} == {0, 1, 2}


def test_bml_gives_a_slower_rail_less():
    shares = thread_shares(Topology.parse("bcube:3,2,200mbit/100mbit"))
    assert [round(float(share), 3) for share in shares] == [0.833, 0.167]
    assert sum(shares) == 1
    # The first rail is so much faster that thread 1, which begins on the other, gets nothing.
    assert thread_shares(Topology.parse("bcube:3,2,10gbit/1mbit")) == [1, 0]
    assert [round(float(share), 3) for share in thread_shares(Topology.parse("bcube:2x3"))] == [0.75, 0.25]


def test_the_two_trees_of_six_and_of_seven():
    """In order of their numbers, with 4 above all others; of six the second is the first one's mirror image."""

    def parents(world, tree):
        first = first_steps(Topology.parse(f"star:{world}"), 0)
        return {edge.child: edge.parent for edge in first if edge.tree == tree}

    assert parents(7, 0) == {1: 2, 2: 4, 3: 2, 4: 0, 5: 6, 6: 4}
    assert parents(7, 1) == {6: 5, 5: 3, 4: 5, 3: 0, 2: 1, 1: 3}
    assert parents(8, 0) == {1: 2, 2: 4, 3: 2, 4: 0, 5: 6, 6: 4, 7: 6}
    assert parents(8, 1) == {7: 1, 1: 3, 2: 1, 3: 0, 4: 5, 5: 3, 6: 5}


def test_of_a_host_one_rank_is_in_the_trees_and_the_others_are_a_chain():
    first = first_steps(Topology.parse("hosts:3x3"), 4)
    first_tree = {(edge.parent, edge.child) for edge in first if edge.tree == 0}
    # Host 1 has the root; hosts 2 and 0 come after it.
    assert first_tree == {(4, 3), (3, 5), (4, 0), (0, 6), (6, 7), (7, 8), (0, 1), (1, 2)}


def test_dependencies_are_those_of_reading_and_writing():
    steps = [
        Step(StepKind.SEND, 1, 0, 0, 10),
        Step(StepKind.COMBINE, 1, 0, 5, 15),  # writes what step 0 reads
        Step(StepKind.COMBINE, 2, 0, 12, 15),  # writes what step 1 writes
        Step(StepKind.SEND, 1, 0, 0, 5),  # reads what nobody writes
        Step(StepKind.SEND, 1, 0, 10, 13),  # reads what steps 1 and 2 write
    ]
    assert find_dependencies(Program(tuple(steps))) == [(), (0,), (1,), (), (1, 2)]


def test_a_send_is_not_earlier_than_receives_before_it_by_more_than_its_lead():
    sends = [Step(StepKind.SEND, 1, 0, start, start + 1) for start in range(4)]
    receives = [Step(StepKind.RECEIVE, 1, 0, start, start + 1) for start in range(10, 13)]
    steps = (sends[0], receives[0], sends[1], receives[1], sends[2], receives[2], sends[3])
    assert find_dependencies(Program(steps)) == [()] * 7
    assert find_dependencies(Program(steps, max_overtaken=0)) == [(), (), (1,), (), (3,), (), (5,)]
    assert find_dependencies(Program(steps, max_overtaken=2)) == [(), (), (), (), (), (), (1,)]


def test_what_comes_from_some_ranks_is_received_in_turn():
    received = [Step(StepKind.RECEIVE, peer, 0, at, at + 1) for at, peer in enumerate((1, 2, 3, 1), 10)]
    steps = [Step(StepKind.SEND, 1, 0, 0, 1), *received]
    assert find_dependencies(Program(tuple(steps))) == [()] * 5
    assert find_dependencies(Program(tuple(steps), ordered_peers=frozenset({1, 2}))) == [(), (), (1,), (), (2,)]
    assert find_dependencies(Program(tuple(steps), ordered_peers=frozenset({3}))) == [()] * 5


@pytest.mark.parametrize("world", [2, 3, 9])
def test_the_first_rank_of_a_pipeline_does_not_run_ahead_of_what_comes_back(world):
    plan = make_plan("lp", Collective("all_reduce", Topology.parse(f"star:{world}"), 100))
    first = plan.program(0)
    end, waits = world - 1, find_dependencies(first)
    sent = [index for index, step in enumerate(first.steps) if step.kind is StepKind.SEND]
    for number, index in enumerate(sent):
        back = [first.steps[other].start for other in waits[index] if first.steps[other].kind is StepKind.RECEIVE]
        # Block j is there again 2 (N - 1) - 1 turns after it was sent.
        expected = number - (2 * end - 1) - 1 - end
        assert back == ([expected] if expected >= 0 else [])
    assert all(plan.program(rank).max_overtaken is None for rank in range(1, world))


def by_hand(*programs: list[Step], count: int = 4) -> Plan:
    collective = Collective("all_reduce", Topology.parse(f"star:{len(programs)}"), count)
    return Plan("by hand", collective, lambda rank: Program(tuple(programs[rank])))


@pytest.mark.parametrize(
    ("programs", "complaint"),
    [
        ([[Step(StepKind.SEND, 1, 0, 0, 4)], []], "1 messages sent, 0 received"),
        ([[Step(StepKind.SEND, 1, 0, 0, 4)], [Step(StepKind.RECEIVE, 0, 0, 0, 3)]], "message 0 is"),
        ([[Step(StepKind.SEND, 1, 0, 0, 5)], [Step(StepKind.RECEIVE, 0, 0, 0, 5)]], "rank 0 has 4 elements"),
        ([[Step(StepKind.SEND, 0, 0, 0, 4)], []], "rank 0 does not reach rank 0"),
        ([[Step(StepKind.SEND, 1, 1, 0, 4)], []], "over rail 1"),
        (
            [
                [Step(StepKind.RECEIVE, 1, 0, 0, 4), Step(StepKind.SEND, 1, 0, 0, 4)],
                [Step(StepKind.RECEIVE, 0, 0, 0, 4), Step(StepKind.SEND, 0, 0, 0, 4)],
            ],
            "deadlock; one of 2 transfers",
        ),
    ],
)
def test_wrong_plans_are_found(programs, complaint):
    with pytest.raises(PlanError, match=complaint):
        order_transfers(by_hand(*programs))


def test_sends_and_receives_of_both_sides_at_once_are_no_deadlock():
    exchange = [[Step(StepKind.SEND, 1, 0, 0, 2), Step(StepKind.RECEIVE, 1, 0, 2, 4)]]
    exchange.append([Step(StepKind.RECEIVE, 0, 0, 0, 2), Step(StepKind.SEND, 0, 0, 2, 4)])
    assert len(order_transfers(by_hand(*exchange))) == 2


def test_bad_requests_name_what_there_is():
    with pytest.raises(InputError, match="there are all_reduce, broadcast"):
        Collective("scan", BCUBE, 4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="root from 0 to 8"):
        Collective("broadcast", BCUBE, 4, root=9)
    with pytest.raises(ConfError, match="there are bml, lp, ring"):
        make_plan("bruck", Collective("all_reduce", BCUBE, 4))
    with pytest.raises(ConfError, match="bml supports all_reduce, reduce_scatter, all_gather, not broadcast"):
        make_plan("bml", Collective("broadcast", BCUBE, 4))
    with pytest.raises(ConfError, match="mst cannot run on bcube:3,2: its partners share no switch"):
        make_plan("mst", Collective("all_reduce", BCUBE, 4))
    with pytest.raises(ConfError, match="tree cannot run on bcube:3,2: its partners share no switch"):
        make_plan("tree", Collective("broadcast", BCUBE, 4))


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_docstrings_open_with_steps_and_bytes(algorithm):
    module = sys.modules[algorithm.plan.__module__]
    second = (module.__doc__ or "").split("\n\n")[1]
    assert second.startswith("Steps: "), f"the second paragraph of the docstring of {module.__file__}"
    assert second.count("\nBytes on the wire: ") == 1


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("ring", "star:8", 14),
        ("mst", "star:8", 6),
        ("torus2d", "star:8", 2 + 6),
        ("lp", "star:8", 2 * 7),
        ("hierarchical", "fattree:4", 2 * (1 + 1 + 3)),
        ("bml", "bcube:2,3", 6),
        ("p2p-ps", "star:8", 14),
        ("tree", "star:8", 2 * (2 + 6 - 2)),
    ],
)
def test_an_all_reduce_takes_the_steps_of_the_docstring(name, text, steps):
    """In one block or round, and each message takes a second, however long it is."""
    topology = Topology.parse(text)
    cost = Cost((0.0,) * topology.rails, alpha=1.0, gamma=0.0)
    plan = make_plan(name, Collective("all_reduce", topology, 48, block=48))
    assert critical_path(order_transfers(plan), topology, 1, cost) == steps
