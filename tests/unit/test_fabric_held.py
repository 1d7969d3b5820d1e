"""Updates that workers hold, when those who have them are lost."""

from __future__ import annotations

import pytest

from sparkdl_comm.fabric.core.decisions import Dropped, Released
from sparkdl_comm.fabric.core.events import Update
from sparkdl_comm.fabric.core.held import Held


@pytest.mark.parametrize("has_come", [False, True])
def test_what_the_replica_has_or_may_get_is_not_sent_again(has_come: bool) -> None:
    """An aggregator is lost that was to bring update 0 to the server, and then the server."""
    held = Held(workers=1, replicated=True)
    held.add(Update(0, 0, (100,), 0, 1.0))
    held.serve([0], [10])
    held.replicate([0], [11])
    decided = held.arrived(11, [0]) if has_come else []
    decided += held.unserve(10, [0], servers=1)
    assert not held.pending
    held.take_over()
    if not has_come:
        decided += held.arrived(11, [0])
    assert not held.pending
    assert decided == [Released(0, 0)]
    assert held.settled == [1]


def test_what_is_decided_anew_and_then_dropped_counts_once() -> None:
    """The server had applied it, and was lost before its copy reached the replica."""
    held = Held(workers=1, replicated=True)
    held.add(Update(0, 0, (100,), 0, 1.0))
    held.serve([0], [10])
    held.arrived(10, [0])
    held.replicate([0], [11])
    held.take_over()
    held.unserve(11, [0], servers=1)
    assert held.pending == [0]
    assert held.drop(0, "deadline") == Dropped(0, 0, "deadline")
    assert held.settled == [1]
