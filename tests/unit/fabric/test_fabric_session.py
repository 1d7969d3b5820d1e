"""Messages to the daemons for decisions of the core, and sessions of all-reduces."""

from __future__ import annotations

import pytest

from sparkdl_comm.fabric.bandwidth import PROBE_FACTOR
from sparkdl_comm.fabric.control import Directory
from sparkdl_comm.fabric.core.messages import (
    Cancellation,
    Decision,
    DroppedUpdate,
    NewSchedule,
    NewTurn,
    Node,
    Piece,
    Push,
    ReleasedUpdate,
    SkippedTurn,
    SmallerSum,
)
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.protocol import (
    Cancel,
    Expect,
    Message,
    Outcome,
    Register,
    Regroup,
    Release,
    Reorder,
    Repace,
    Send,
    Skip,
    unpack_transfer_number,
)
from sparkdl_comm.fabric.service import Fences
from sparkdl_comm.fabric.session import SchedulingSession, relative_slices

SERVER, REPLICA, ADDING = Node("server", 0), Node("replica", 0), Node("aggregator", 0)
WORKERS = [Node("worker", index) for index in range(3)]


class Dispatch:
    """A session of three workers with an update each, from versions 4, 6 and 5. It gets decisions as if from the core.

    Methods return the messages that they cause, with the node that gets each.
    """

    def __init__(self, course: int = 0) -> None:
        registered = [
            Register(
                role,
                rank,
                f"host {rank}",
                [("127.0.0.1", 1000 + rank)],
                {},
                elements=10 * (role in ("server", "replica")),
            )
            for rank, role in enumerate(("server", "replica", "worker", "worker", "worker", "aggregator"))
        ]
        self.sent: list[tuple[Node, Message]] = []
        self.session = SchedulingSession(course, Directory.of(registered, 0), FabricParams("async:30"), self._send)
        for worker, base in zip(WORKERS, (4, 6, 5), strict=True):
            self.session.add_update(worker, 70 + worker.index, base, 2.0, 0.0)

    def _send(self, node: Node, message: Message) -> None:
        self.sent.append((node, message))

    def _take(self) -> list[tuple[Node, Message]]:
        sent, self.sent = self.sent, []
        return sent

    def dispatch(self, decisions: list[Decision], now: float) -> list[tuple[Node, Message]]:
        self.session.carry_out(decisions, now)
        return self._take()

    def end_transfer(self, transfer: int, version: int, now: float) -> list[tuple[Node, Message]]:
        self.session.end_transfer(transfer, version, now)
        return self._take()

    def lose_server(self, now: float) -> None:
        self.session.lose_node(SERVER, (1,), True, now)


def push(number: int, source: Node, target: Node, updates: tuple[int, ...], after=(), start: float = 1.0) -> Push:
    turn = None if target == ADDING else 3
    return Push(
        id=number, source=source, target=target, bytes=40, after=after, schedule=(Piece(start, start + 1, 40.0),),
        updates=updates, scales=(0.5,) * len(updates), shard=None if turn is None else 0, turn=turn,
    )  # fmt: skip


SUM = [
    push(0, WORKERS[0], ADDING, (0,)),
    push(1, WORKERS[1], ADDING, (1,)),
    push(2, ADDING, SERVER, (0, 1), after=(0, 1)),
]


def test_an_update_that_goes_straight() -> None:
    made = Dispatch()
    [(target, expect), (source, send)] = made.dispatch([push(9, WORKERS[2], SERVER, (2,))], 1.0)
    assert (target, source) == (SERVER, WORKERS[2])
    assert expect == Expect(9, 10, turn=3, count=1, staleness=5)
    assert send == Send(
        9,
        10,
        [("127.0.0.1", 1000)],
        [(0.0, 1.0, PROBE_FACTOR * 40.0)],
        update=72,
        scale=0.5,
        count=1,
        staleness=5,
        norm=1.0,
    )
    assert made.end_transfer(9, 8, 2.0) == [(WORKERS[2], Outcome(72, 8))]
    assert made.session.delays == [3]
    assert made.dispatch([ReleasedUpdate(2, 2)], 2.0) == [(WORKERS[2], Release(72))]


def test_a_sum() -> None:
    """The aggregator gets its order at once. The delay of an update counts its place in the sum."""
    made = Dispatch()
    orders = made.dispatch(SUM, 0.0)
    assert [node for node, _ in orders] == [ADDING, ADDING, SERVER, WORKERS[0], WORKERS[1], ADDING]
    assert [order.uses for _, order in orders[:2]] == [1, 1]
    send = orders[-1][1]
    assert (send.of, send.count, send.staleness, send.norm) == ([0, 1], 2, 4, 2.0)
    assert [order.next_hop for _, order in orders[3:5]] == [0, 0]
    assert made.session.find_unfinished(WORKERS[0]) == {ADDING: [0]}
    assert made.end_transfer(0, -1, 1.0) == made.end_transfer(1, -1, 1.0) == []
    assert made.end_transfer(2, 9, 2.0) == [(WORKERS[0], Outcome(70, 9)), (WORKERS[1], Outcome(71, 9))]
    assert made.session.delays == [8 - 4, 9 - 6]


def test_a_transfer_that_waits_for_what_happens_elsewhere() -> None:
    """The transfer is ordered when the other one has ended. Its inputs have arrived meanwhile."""
    made = Dispatch()
    copy = push(5, WORKERS[2], REPLICA, (2,))
    last = push(2, ADDING, SERVER, (0, 1), after=(0, 1, 5))
    orders = made.dispatch([*SUM[:2], copy, last], 0.0)
    assert not any(isinstance(order, Send) and order.transfer == 2 for _, order in orders)
    made.end_transfer(0, -1, 1.0)
    made.end_transfer(1, -1, 1.0)
    [(node, send)] = made.end_transfer(5, 1, 3.5)
    assert node == ADDING
    assert isinstance(send, Send)
    assert send.of == [0, 1]
    assert send.slices == [(0.0, 1.0, PROBE_FACTOR * 40.0)]


def test_a_lost_worker_is_left_out() -> None:
    made = Dispatch()
    made.dispatch(SUM, 0.0)
    orders = made.dispatch([Cancellation(0), SmallerSum(2, (1,))], 1.0)
    assert orders == [(ADDING, Regroup(2, 1, 6)), (ADDING, Cancel(0)), (WORKERS[0], Cancel(0))]
    assert made.end_transfer(2, 7, 2.0) == [(WORKERS[1], Outcome(71, 7))]
    assert made.end_transfer(0, -1, 2.0) == []


def test_regrouped_while_it_waits() -> None:
    made = Dispatch()
    made.dispatch([*SUM[:2], push(5, WORKERS[2], REPLICA, (2,)), push(2, ADDING, SERVER, (0, 1), after=(0, 1, 5))], 0.0)
    made.dispatch([SmallerSum(2, (1,)), Cancellation(0)], 1.0)
    [(_, send)] = made.end_transfer(5, 1, 2.0)
    assert isinstance(send, Send)
    assert (send.count, send.staleness, send.norm) == (1, 6, 1.0)


def test_a_transfer_that_is_not_ordered_yet_is_ordered_by_its_last_schedule() -> None:
    made = Dispatch()
    made.dispatch([*SUM[:2], push(5, WORKERS[2], REPLICA, (2,)), push(2, ADDING, SERVER, (0, 1), after=(0, 1, 5))], 0.0)
    assert made.dispatch([NewSchedule(2, (Piece(4.0, 6.0, 20.0),))], 1.0) == []
    [(_, send)] = made.end_transfer(5, 1, 2.0)
    assert isinstance(send, Send)
    assert send.slices == [(2.0, 4.0, PROBE_FACTOR * 20.0)]


def test_the_rest() -> None:
    made = Dispatch()
    made.dispatch(SUM, 0.0)
    pieces = (Piece(2.0, 3.0, 10.0),)
    assert made.dispatch([NewSchedule(1, pieces)], 1.5) == [(WORKERS[1], Repace(1, [(0.5, 1.5, PROBE_FACTOR * 10.0)]))]
    assert made.dispatch([SkippedTurn(SERVER, 4)], 2.0) == [(SERVER, Skip(4))]
    assert made.dispatch([NewTurn(2, 8), SkippedTurn(SERVER, 3)], 2.0) == [(SERVER, Reorder(2, 8)), (SERVER, Skip(3))]
    told = made.dispatch([DroppedUpdate(2, 2, "deadline")], 2.0)
    assert told == [(WORKERS[2], Outcome(72, -1, "deadline")), (WORKERS[2], Release(72))]
    assert made.session.dropped == {"deadline": 1}


def test_take_over() -> None:
    """An update that the replica has counts as applied. Later updates are applied at the replica."""
    made = Dispatch()
    made.dispatch([push(0, WORKERS[0], SERVER, (0,)), push(1, WORKERS[0], REPLICA, (0,))], 0.0)
    made.dispatch([push(2, WORKERS[1], SERVER, (1,))], 0.0)
    made.end_transfer(1, 1, 1.0)
    made.end_transfer(2, 6, 1.0)
    made.lose_server(1.0)
    assert made.session.lost_updates == 5
    assert made.session.serving_role == "replica"
    cancel = Cancel(0)
    assert made.dispatch([Cancellation(0), ReleasedUpdate(0, 0)], 2.0) == [
        (SERVER, cancel), (WORKERS[0], cancel), (WORKERS[0], Outcome(70, 1)), (WORKERS[0], Release(70)),
    ]  # fmt: skip
    made.dispatch([push(7, WORKERS[2], REPLICA, (2,))], 2.0)
    assert made.end_transfer(7, 6, 3.0) == [(WORKERS[2], Outcome(72, 6))]
    assert made.dispatch([ReleasedUpdate(2, 2)], 3.0) == [(WORKERS[2], Release(72))]


def test_what_is_on_its_way_to_the_replica_when_it_takes_over() -> None:
    made = Dispatch()
    made.dispatch([push(0, WORKERS[0], SERVER, (0,)), push(1, WORKERS[0], REPLICA, (0,))], 0.0)
    made.lose_server(1.0)
    made.dispatch([Cancellation(0)], 1.0)
    assert made.end_transfer(1, 1, 2.0) == []
    assert made.dispatch([ReleasedUpdate(0, 0)], 2.0) == [(WORKERS[0], Outcome(70, 1)), (WORKERS[0], Release(70))]


@pytest.mark.parametrize("course", [0, 1, 12345])
def test_numbers_of_transfers(course: int) -> None:
    made = Dispatch(course)
    [(_, expect), _] = made.dispatch([push(9, WORKERS[2], SERVER, (2,))], 0.0)
    assert isinstance(expect, Expect)
    assert unpack_transfer_number(expect.transfer) == (course, 9)


def test_schedules_travel_without_a_clock() -> None:
    pieces = (Piece(100.0, 101.0, 5.0), Piece(103.0, 104.0, 6.0))
    expected = [(2.0, 3.0, PROBE_FACTOR * 5.0), (5.0, 6.0, PROBE_FACTOR * 6.0)]
    assert relative_slices(pieces, 98.0) == expected
    assert relative_slices(pieces, 105.0) == [(0.0, 1.0, PROBE_FACTOR * 5.0), (3.0, 4.0, PROBE_FACTOR * 6.0)]
    assert relative_slices((), 98.0) == []


def test_hosts_are_those_of_nodes() -> None:
    """The scheduler's host has no number. An all-reduce has the hosts up to its last node."""
    registered = [
        Register(role, rank, f"host {rank}", [("127.0.0.1", 1000 + rank)], {}, elements=10 * (role == "server"))
        for rank, role in enumerate(("scheduler", "worker", "worker", "server"))
    ]
    directory = Directory.of(registered, 0)
    assert directory.hosts == {"host 1": 0, "host 2": 1, "host 3": 2}
    assert directory.roles.hosts == 3
    told: list = []
    session = SchedulingSession(
        1, directory.for_reduction(WORKERS[1], 5), FabricParams("bsp"), lambda *what: told.append(what), WORKERS[1]
    )
    session.report_bandwidths(dict.fromkeys(range(3), (1e6, 1e6)), 0.0)
    for worker in WORKERS[:2]:
        session.add_update(worker, 0, 0, 1.0, 0.0)
    session.decide(0.0)
    assert {node for node, _ in told} == set(WORKERS[:2])


def test_an_all_reduce_is_over_without_a_worker_that_was_lost_meanwhile() -> None:
    registered = [
        Register(role, rank, f"host {rank}", [("127.0.0.1", 1000 + rank)], {})
        for rank, role in enumerate(("scheduler", "worker", "worker", "worker"))
    ]
    told: list[Expect] = []

    def tell(node: Node, message: Message) -> None:
        if isinstance(message, Expect):
            told.append(message)

    session = SchedulingSession(
        1, Directory.of(registered, 0).for_reduction(WORKERS[1], 5), FabricParams("bsp"), tell, WORKERS[1]
    )
    session.report_bandwidths(dict.fromkeys(range(3), (1e6, 1e6)), 0.0)
    for worker in WORKERS:
        session.add_update(worker, 0, 0, 1.0, 0.0)
        session.request_model(worker, 0.0)
    session.lose_node(WORKERS[2], (), False, 0.0)
    for now in (1.0, 2.0):  # to the root, and back
        session.decide(now)
        for version, expect in enumerate(told, 1):
            session.end_transfer(unpack_transfer_number(expect.transfer)[1], version, now)
        told.clear()
    assert session.is_over(WORKERS[:2])


def test_an_all_reduce_goes_on_without_the_server_of_the_model() -> None:
    """The core calls the root of an all-reduce its server, too."""
    registered = [
        Register(role, rank, f"host {rank}", [("127.0.0.1", 1000 + rank)], {}, elements=10 * (role[0] in "sr"))
        for rank, role in enumerate(("server", "replica", "worker", "worker", "worker"))
    ]
    root = WORKERS[1]
    session = SchedulingSession(
        1, Directory.of(registered, 0).for_reduction(root, 5), FabricParams("bsp"), lambda *what: None, root
    )
    session.report_bandwidths(dict.fromkeys(range(5), (1e6, 1e6)), 0.0)
    for worker in WORKERS:
        session.add_update(worker, 0, 0, 1.0, 0.0)
        session.request_model(worker, 0.0)
    session.decide(0.0)
    for number in range(3):
        session.end_transfer(number, number + 1, 1.0)
    session.decide(1.0)
    assert not session.is_over(WORKERS)
    for lost in (SERVER, REPLICA):
        assert session.find_unfinished(lost) == {}
        session.lose_node(lost, (), lost == SERVER, 2.0)
    for number in range(3, 6):
        session.end_transfer(number, 0, 3.0)
    assert session.is_over(WORKERS)


def test_fences() -> None:
    """A fence passes when all receivers of the lost node have answered or are lost themselves."""
    fences = Fences()
    first = fences.begin(WORKERS[0], [SERVER, ADDING], 10.0)
    assert fences.pop_passed() == []
    fences.record_answer(first, SERVER)
    assert fences.pop_passed() == []
    fences.begin(WORKERS[1], [], 10.0)
    assert fences.pop_passed() == [WORKERS[1]]
    second = fences.begin(ADDING, [SERVER], 12.0)
    assert fences.pop_passed() == [WORKERS[0]]
    assert fences.find_overdue(12.0) is None
    assert fences.find_overdue(12.5) == (ADDING, SERVER)
    fences.record_answer(second, SERVER)
    fences.record_answer(second, SERVER)
    assert fences.pop_passed() == [ADDING]
    assert fences.pop_passed() == []
