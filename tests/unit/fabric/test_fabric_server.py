"""Server: the order of turns, skipped and changed turns, copies of its state."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.errors import GangError, InputError
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.protocol import (
    Cancel,
    Ended,
    Expect,
    Fence,
    Fenced,
    Kind,
    Message,
    Reorder,
    Send,
    Skip,
    Wanted,
    Welcome,
    pack_transfer_number,
)
from sparkdl_comm.fabric.roles import Aggregator
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.fabric.transport import Arrival, Header
from sparkdl_comm.fabric.worker import Worker
from tests.unit.gang_helpers import SECONDS


class LoggedServer:
    """Server with momentum and a log of its messages. Update number ``n`` is n + 1 in each element."""

    def __init__(self, sync: str = "bsp") -> None:
        self.told: list[Message] = []
        self.part = Server(np.zeros(3, np.float32), FabricParams(sync, momentum=0.5))
        self.part.report = self.told.append
        self.part.begin()

    def expect(self, number: int, turn: int) -> None:
        self.part.on_message(Expect(number, 3, turn=turn, count=1))

    def arrive(self, number: int, base: int = 0) -> None:
        values = np.full(3, number + 1, np.float32)
        self.part.on_arrival(Arrival(Expect(number, 3, count=1), values, Header(Kind.UPDATE, number, base, count=1)))

    @property
    def applied(self) -> list[int]:
        return [message.transfer for message in self.told if isinstance(message, Ended)]


def model_of(order: list[int]) -> float:
    before = now = 0.0
    for number in order:
        before, now = now, now + number + 1 + 0.5 * (now - before)
    return now


@given(st.permutations(range(6)))
def test_order_is_that_of_turns(arrivals: list[int]) -> None:
    server = LoggedServer()
    for number in range(6):
        server.expect(number, number)
    for number in arrivals:
        server.arrive(number)
    assert server.applied == list(range(6))
    assert [ended.version for ended in server.told] == list(range(1, 7))
    np.testing.assert_allclose(server.part.snapshot()[0], model_of(list(range(6))), rtol=1e-6)


@given(st.permutations(["arrive 0", "arrive 1", "arrive 2", "reorder", "expect 2"]))
def test_a_transfer_that_is_overtaken(events: list[str]) -> None:
    """Transfer 0 gets turn 2 instead of 0. If it was applied before, turn 2 is skipped."""
    server = LoggedServer()
    server.expect(0, 0)
    server.expect(1, 1)
    expected = [1, 0, 2]
    for event in events:
        if event == "reorder":
            if server.applied:
                expected = [0, 1, 2]
            server.part.on_message(Reorder(0, 2))
            server.part.on_message(Skip(0))
        elif event == "expect 2":
            server.expect(2, 3)
        # Nothing arrives before it is expected: the receiver sees to that.
        elif event != "arrive 2" or "expect 2" in events[: events.index(event)]:
            server.arrive(int(event[-1]))
    if events.index("expect 2") > events.index("arrive 2"):
        server.arrive(2)
    assert server.applied == expected


def test_a_turn_is_that_of_one_all_reduce() -> None:
    """A worker is the root of two of them."""
    worker = Worker(SECONDS)
    told: list[Message] = []
    worker.report = told.append

    def expect(course: int, number: int, turn: int) -> Expect:
        expected = Expect(pack_transfer_number(course, number), 3, turn=turn, count=1, course=course)
        worker.on_message(expected)
        return expected

    expect(1, 0, 0)
    arrivals = [expect(2, number, number) for number in range(2)]
    worker.on_message(Reorder(pack_transfer_number(1, 0), 1))
    worker.on_message(Skip(0, 1))
    for number, expected in enumerate(arrivals):
        worker.on_arrival(Arrival(expected, np.ones(3, np.float32), Header(Kind.UPDATE, number, count=1)))
    assert told == [Ended(expected.transfer, version) for version, expected in enumerate(arrivals, 1)]


@pytest.mark.parametrize("message", [Cancel(0), Fence(7, [0], "a worker")])
@pytest.mark.parametrize("arrives_first", [True, False])
def test_what_is_cancelled_is_not_applied(message: Cancel | Fence, arrives_first: bool) -> None:
    server = LoggedServer()
    server.expect(9, 0)
    server.expect(0, 1)
    if arrives_first:
        server.arrive(0)
    (server.part.on_fence if isinstance(message, Fence) else server.part.on_message)(message)
    if not arrives_first:
        server.arrive(0)
    server.arrive(9)
    assert server.applied == [9]
    server.part.on_message(Skip(1))
    server.expect(5, 2)
    server.arrive(5)
    assert server.applied == [9, 5]


@pytest.mark.parametrize("heard_before", [True, False])
def test_what_another_server_has_counts(heard_before: bool) -> None:
    """When it is the turn of that, and once."""
    server = LoggedServer()
    server.expect(0, 0)
    if heard_before:
        server.part.on_message(Skip(1, count=2))
    assert server.part.version == 0
    server.arrive(0)
    if not heard_before:
        server.part.on_message(Skip(1, count=2))
    server.part.on_message(Skip(1, count=2))
    assert server.part.version == 3
    server.expect(5, 2)
    server.arrive(5)
    assert server.part.version == 4
    np.testing.assert_allclose(server.part.snapshot()[0], model_of([0, 5]))


@pytest.mark.parametrize("versions", [(4, 7), (7, 4)])
def test_a_model_is_as_old_as_its_oldest_part(versions: tuple[int, int]) -> None:
    worker, aggregator = Worker(SECONDS), Aggregator()
    parts = [Expect(number, 2, uses=1, content=Kind.MODEL, offset=2 * number) for number in range(2)]
    arrivals = [
        Arrival(part, np.full(2, part.offset, np.float32), Header(Kind.MODEL, part.transfer, version))
        for part, version in zip(parts, versions, strict=True)
    ]
    worker.on_message(Welcome([0, 1], [2, 2]))
    aggregator.report = lambda message: None

    def report(message: Message) -> None:
        if isinstance(message, Wanted):
            for arrival in arrivals:
                worker.on_arrival(arrival)

    worker.report = report
    for arrival in arrivals:
        aggregator.on_arrival(arrival)
    model = np.empty(4, np.float32)
    assert worker.get(0, model) == 4
    passed_on = aggregator.await_payload(Send(9, 4, [], [], of=[0, 1], content=Kind.MODEL))
    assert passed_on is not None
    assert passed_on.version == 4
    for values in (model, passed_on.values):
        np.testing.assert_array_equal(values, [0, 0, 2, 2])


def test_a_replica_gets_the_state() -> None:
    """It is that before a turn of the server's, and the replica goes on with a turn of its own."""
    server, replica = LoggedServer(), LoggedServer()
    for number in range(3):
        server.expect(number, number)
    server.part.on_message(Send(8, 6, [], [], content=Kind.STATE, turn=2))
    for number in range(3):
        server.arrive(number)
    made = server.part.await_payload(Send(8, 6, [], [], content=Kind.STATE, turn=2))
    assert made is not None
    assert made.version == 2
    replica.expect(70, 0)
    replica.part.on_message(Expect(8, 6, turn=4, content=Kind.STATE))
    replica.arrive(70)
    assert replica.applied == []
    replica.expect(2, 4)
    replica.arrive(2)
    header = Header(Kind.STATE, 8, made.version)
    replica.part.on_arrival(Arrival(Expect(8, 6, turn=4, content=Kind.STATE), made.values, header))
    assert replica.applied == [8, 2]
    for one, other in zip(server.part.snapshot(), replica.part.snapshot(), strict=True):
        np.testing.assert_array_equal(one, other)


def state(transfer: int, values: float, version: int, turn: int) -> Arrival:
    expected = Expect(transfer, 6, turn=turn, content=Kind.STATE)
    return Arrival(expected, np.full(6, values, np.float32), Header(Kind.STATE, transfer, version))


@pytest.mark.parametrize("fenced", [False, True])
def test_a_replica_goes_on_without_a_copy_that_is_cancelled(fenced: bool) -> None:
    """The replica goes on with the updates that it has, even if the copy arrives after all."""
    replica = LoggedServer()
    replica.expect(0, 0)
    replica.arrive(0)
    replica.part.on_message(Expect(8, 6, turn=2, content=Kind.STATE))
    replica.expect(1, 2)
    replica.arrive(1)
    if fenced:
        replica.part.on_fence(Fence(5, [8], "a server"))
        assert replica.told[-1] == Fenced(5)
    else:
        replica.part.on_message(Cancel(8))
    replica.part.on_arrival(state(8, 7.0, 9, 2))
    assert replica.applied == [0]
    replica.part.on_message(Skip(1))
    assert replica.applied == [0, 1]
    assert replica.part.version == 2


def test_a_copy_that_another_one_takes_the_place_of() -> None:
    replica = LoggedServer()
    for transfer in (8, 9):
        replica.part.on_message(Expect(transfer, 6, turn=transfer, content=Kind.STATE))
    replica.part.on_message(Cancel(8))
    replica.part.on_arrival(state(8, 7.0, 70, 8))
    replica.part.on_arrival(state(9, 5.0, 50, 9))
    assert replica.applied == [9]
    assert replica.part.version == 50


def test_two_copies_of_one_state() -> None:
    """The first was cancelled, but its sender waits for it still."""
    server = LoggedServer()
    orders = [Send(transfer, 6, [], [], content=Kind.STATE, turn=1) for transfer in (8, 9)]
    made: list = []
    waiting = [
        threading.Thread(target=lambda order=order: made.append(server.part.await_payload(order))) for order in orders
    ]
    for thread, order in zip(waiting, orders, strict=True):
        server.part.on_message(order)
        thread.start()
    server.part.on_message(Cancel(8))
    server.expect(0, 0)
    server.arrive(0)
    for thread in waiting:
        thread.join(SECONDS)
    assert sorted(values is None for values in made) == [False, True]


def test_a_delay_above_the_bound_is_refused() -> None:
    server = LoggedServer("async:2")
    for number in range(3):
        server.expect(number, number)
    server.arrive(0)
    server.arrive(1)
    with pytest.raises(GangError, match="transfer 2 would have a delay of 3 updates, above the bound 2"):
        server.arrive(2)


def test_models_are_snapshots() -> None:
    """All transfers of a batch bring one version; those who ask before it serves wait."""
    part = Server(np.zeros(3, np.float32), FabricParams("bsp"))
    part.report = lambda message: None
    found: list = []
    waiting = threading.Thread(
        target=lambda: found.append(part.await_payload(Send(1, 3, [], [], content=Kind.MODEL, batch=4)))
    )
    waiting.start()
    part.begin()
    waiting.join(SECONDS)
    part.on_message(Expect(0, 3, turn=0, count=1))
    part.on_arrival(Arrival(Expect(0, 3), np.ones(3, np.float32), Header(Kind.UPDATE, 0, count=1)))
    again = part.await_payload(Send(2, 3, [], [], content=Kind.MODEL, batch=4))
    later = part.await_payload(Send(3, 3, [], [], content=Kind.MODEL, batch=5))
    assert again is found[0]
    assert again is not None
    assert later is not None
    assert (again.version, later.version) == (0, 1)
    np.testing.assert_array_equal(again.values, 0.0)


def test_a_model_of_a_batch_that_is_older_than_those_kept() -> None:
    part = Server(np.ones(3, np.float32), FabricParams("bsp"))
    part.begin()
    for batch in (1, 2, 3, 4, 0):
        made = part.await_payload(Send(batch, 3, [], [], content=Kind.MODEL, batch=batch))
        assert made is not None
        np.testing.assert_array_equal(made.values, 1.0)


@pytest.mark.parametrize("serves", [False, True])
def test_what_is_waited_for_ends_with_the_job(serves: bool) -> None:
    """A model of a server that does not serve yet; the state before a turn that does not come; a part of a sum."""
    server = Server(np.zeros(3, np.float32), FabricParams("bsp"))
    aggregator = Aggregator()
    orders = [(aggregator, Send(3, 3, [], [], of=[2]))]
    if serves:
        server.begin()
        copy = Send(1, 3, [], [], content=Kind.STATE, turn=9)
        server.on_message(copy)
        orders.append((server, copy))
    else:
        orders.append((server, Send(1, 3, [], [], content=Kind.MODEL, batch=4)))
    waiting = [threading.Thread(target=part.await_payload, args=(order,), daemon=True) for part, order in orders]
    for each, (part, _) in zip(waiting, orders, strict=True):
        each.start()
        part.end(None)
    for each in waiting:
        each.join(SECONDS)
        assert not each.is_alive()


def test_what_a_server_cannot_have() -> None:
    with pytest.raises(InputError, match="must be flat and float32, not float64"):
        Server(np.zeros(3), FabricParams("bsp"))
    part = Server(np.zeros(3, np.float32), FabricParams("bsp"))
    part.register_request_callback(lambda model: model[:2])
    part.begin()
    with pytest.raises(InputError, match=r"request_callback returned shape \[2\], but the model has shape \[3\]"):
        part.await_payload(Send(1, 3, [], [], content=Kind.MODEL, batch=0))
