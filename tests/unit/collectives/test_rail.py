"""Which message a NIC sends next."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sparkdl_comm.collectives.engine.connection import RailQueue
from sparkdl_comm.collectives.engine.peer_sockets import PeerSockets
from sparkdl_comm.collectives.engine.sockets import SocketEngine
from sparkdl_comm.collectives.plan import Collective, Plan, Program, Step, StepKind
from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.topology import Topology
from tests.unit.gang_helpers import SECONDS, gang_of


@dataclass(eq=False)
class Known:
    """A connection in a known state; ``send_order`` of its first message."""

    send_order: int
    wants_to_send: bool = True
    is_full: bool = False
    stalled: bool = False

    def is_stalled(self, now: float, patience: float) -> bool:
        return self.stalled


def rail_of(*connections: Any) -> RailQueue:
    rail = RailQueue()
    rail.connections.extend(connections)
    return rail


def test_the_first_message_that_is_ready_is_sent_alone():
    later, first, not_ready = Known(2), Known(1), Known(0, wants_to_send=False)
    rail = rail_of(later, first, not_ready)
    assert rail.pick_connection(0.0) is first
    assert rail.candidates == [first]
    first.is_full = True
    assert rail.pick_connection(0.0) is None
    assert (rail.candidates, rail.is_held_up) == ([first], True)


def test_who_does_not_take_his_message_does_not_hold_up_the_others():
    first, second, third = Known(1, is_full=True, stalled=True), Known(2), Known(3)
    rail = rail_of(first, second, third)
    assert rail.pick_connection(0.0) is second
    # The first one may go on as soon as there is room.
    assert (rail.candidates, rail.is_held_up) == ([first, second], False)
    first.is_full = False
    assert rail.pick_connection(0.0) is first


def test_nobody_waits_for_the_last():
    rail = rail_of(Known(1, is_full=True))
    assert rail.pick_connection(0.0) is None
    assert not rail.is_held_up


def test_a_rank_that_is_late_does_not_hold_up_the_others():
    count = 32 << 20  # more than the kernel buffers for a peer that does not read
    steps = {
        0: (Step(StepKind.SEND, 1, 0, 0, count), Step(StepKind.SEND, 2, 0, 0, count)),
        1: (Step(StepKind.RECEIVE, 0, 0, 0, count),),
        2: (Step(StepKind.RECEIVE, 0, 0, 0, count),),
    }
    collective = Collective("broadcast", Topology.parse("star:3"), count)
    plan = Plan("fan", collective, lambda rank: Program(steps[rank]))
    others_done = threading.Event()
    found: dict[int, torch.Tensor] = {}

    def one(gang: Any) -> None:
        engine = SocketEngine(gang.rank, PeerSockets(gang, "fan", range(3), [0], SECONDS), SECONDS)
        gang.all_gather(b"", SECONDS)
        prepared = engine.prepare(plan)
        if gang.rank == 1:
            others_done.wait(SECONDS)
        job = engine.start(prepared, torch.full((count,), 7 if gang.rank == 0 else 0, dtype=torch.uint8))
        if gang.rank == 0:
            others_done.wait(SECONDS)
            with pytest.raises(DeadlineError):
                job.wait(0.0)  # rank 1 did keep its message waiting
        found[gang.rank] = job.wait(SECONDS)
        if gang.rank == 2:
            others_done.set()
        gang.all_gather(b"", SECONDS)
        engine.close()

    with gang_of(3) as gangs:
        threads = [threading.Thread(target=one, args=(gang,), daemon=True) for gang in gangs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
    assert [found[rank].sum().item() for rank in (1, 2)] == [7 * count] * 2
