"""Gangs of one application wait in the admission queue for its slots."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.job.slots import AdmissionQueue


def hold(
    queue: AdmissionQueue, ranks: int, slots: int | None, until: threading.Event, pool: ThreadPoolExecutor
) -> Future[None]:
    """A gang in a thread of its own; returns when it runs, or after 0.3 s if it has to wait."""
    running = threading.Event()

    def gang() -> None:
        with queue.admit(ranks, slots, 10):
            running.set()
            assert until.wait(10)

    future = pool.submit(gang)
    future.running_now = running.wait(0.3)  # type: ignore[attr-defined]
    return future


@pytest.mark.parametrize(("slots", "together"), [(4, True), (3, False), (None, False)])
def test_gangs_run_together_only_if_all_ranks_fit(slots: int | None, together: bool) -> None:
    queue, end = AdmissionQueue(), threading.Event()
    with ThreadPoolExecutor() as pool:
        gangs = [hold(queue, 2, slots, end, pool) for _ in range(2)]
        assert [gang.running_now for gang in gangs] == [True, together]  # type: ignore[attr-defined]
        end.set()
        for gang in gangs:
            gang.result(10)


def test_a_small_gang_does_not_overtake_a_large_one() -> None:
    queue, first, rest = AdmissionQueue(), threading.Event(), threading.Event()
    with ThreadPoolExecutor() as pool:
        gangs = [hold(queue, 2, 3, first, pool), hold(queue, 3, 3, rest, pool), hold(queue, 1, 3, rest, pool)]
        assert [gang.running_now for gang in gangs] == [True, False, False]  # type: ignore[attr-defined]
        first.set()
        rest.set()
        for gang in gangs:
            gang.result(10)


def test_a_gang_that_fails_frees_its_slots() -> None:
    queue = AdmissionQueue()
    with pytest.raises(ValueError, match="boom"), queue.admit(3, 3, 10):
        raise ValueError("boom")
    with ThreadPoolExecutor() as pool:
        end = threading.Event()
        gang = hold(queue, 3, 3, end, pool)
        assert gang.running_now  # type: ignore[attr-defined]
        end.set()
        gang.result(10)


def test_a_gang_that_waits_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("sparkdl_comm.job.slots.LOG_INTERVAL_SECONDS", 0.05)
    queue, end = AdmissionQueue(), threading.Event()
    with ThreadPoolExecutor() as pool, caplog.at_level(logging.WARNING):
        gangs = [hold(queue, 2, 3, end, pool) for _ in range(2)]
        end.set()
        for gang in gangs:
            gang.result(10)
    assert "a fit with 2 ranks waits for its turn: 0 others are before it, and 2 of 3 slots in use" in caplog.text


def test_a_gang_does_not_wait_for_ever() -> None:
    queue, end = AdmissionQueue(), threading.Event()
    with ThreadPoolExecutor() as pool:
        first = hold(queue, 2, 3, end, pool)
        message = r"waited 0\.1 s .*turnTimeout\): 0 others .*, and 2 of 3 slots in use"
        with pytest.raises(DeadlineError, match=message), queue.admit(2, 3, 0.1):
            pytest.fail("there are no slots")
        end.set()
        first.result(10)
    with queue.admit(3, 3, 10):
        pass
