"""Updates of workers when servers, replicas or aggregators are lost."""

from __future__ import annotations

import pytest

from sparkdl_comm.fabric.core.messages import DroppedUpdate, ReleasedUpdate, Update
from sparkdl_comm.fabric.core.updates import UpdateLedger


@pytest.mark.parametrize("has_come", [False, True])
def test_what_the_replica_has_or_may_get_is_not_sent_again(has_come: bool) -> None:
    """First the aggregator is lost that would have sent update 0 to the server, then the server."""
    update_ledger = UpdateLedger(workers=1, has_replicas=True)
    update_ledger.add(Update(0, 0, (100,), 0, 1.0))
    update_ledger.serve([0], [10])
    update_ledger.replicate([0], [11])
    decided = update_ledger.record_arrival(11, [0]) if has_come else []
    decided += update_ledger.undo_serving(10, [0], servers=1)
    assert not update_ledger.pending
    update_ledger.take_over()
    if not has_come:
        decided += update_ledger.record_arrival(11, [0])
    assert not update_ledger.pending
    assert decided == [ReleasedUpdate(0, 0)]
    assert update_ledger.settled == [1]


def test_what_is_decided_anew_and_then_dropped_counts_once() -> None:
    """The server had applied the update, and was lost before its copy reached the replica."""
    update_ledger = UpdateLedger(workers=1, has_replicas=True)
    update_ledger.add(Update(0, 0, (100,), 0, 1.0))
    update_ledger.serve([0], [10])
    update_ledger.record_arrival(10, [0])
    update_ledger.replicate([0], [11])
    update_ledger.take_over()
    update_ledger.undo_serving(11, [0], servers=1)
    assert update_ledger.pending == [0]
    assert update_ledger.drop(0, "deadline") == DroppedUpdate(0, 0, "deadline")
    assert update_ledger.settled == [1]
