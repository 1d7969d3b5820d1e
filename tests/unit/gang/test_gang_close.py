"""How a gang ends that did not fail."""

from __future__ import annotations

import os
import threading
import time

import pytest

from sparkdl_comm.errors import GangError
from sparkdl_comm.gang.store import StoreService
from tests.unit.gang_helpers import (
    SECONDS,
    gang_of,
    primary,
    wait_for,
)


def test_close_leaves_no_thread_and_no_socket(monkeypatch):
    drop = StoreService._drop
    monkeypatch.setattr(StoreService, "_drop", lambda *args: (time.sleep(0.2), drop(*args)))
    others = set(threading.enumerate())  # as of hooks of DDP, whose gang is its process's

    def ours() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - others if thread.name.startswith("sparkdl")]

    def sockets() -> int:
        return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket") for fd in _fds())

    before = sockets()
    with gang_of(3) as gangs:
        for gang in gangs:
            gang.store("s").add("k", 1)
        assert ours()
        assert sockets() > before
    assert not ours()
    assert wait_for(lambda: sockets() <= before)


def _fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}") or _is_socket(fd)]


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
    except OSError:
        return False


def test_after_close_nothing_blocks():
    with gang_of(2) as gangs:
        gangs[1].close()
        gangs[1].announce_failure(primary(1))
        with pytest.raises(GangError, match="closed"):
            gangs[1].store("s").get("never")


def test_rank_0_outlasts_the_others():
    with gang_of(3) as gangs:
        gone = threading.Event()

        def leave_last() -> None:
            gangs[0].wait_until_alone(SECONDS)
            gone.set()

        waiting = threading.Thread(target=leave_last, daemon=True)
        waiting.start()
        gangs[2].wait_until_alone(SECONDS)
        gangs[2].close()
        assert not gone.wait(0.3), "rank 1 may still need the store"
        gangs[1].close()
        assert gone.wait(SECONDS)


def test_who_outlasts_learns_of_a_failure():
    with gang_of(2) as gangs:
        gangs[1].announce_failure(primary(1))
        with pytest.raises(GangError):
            gangs[0].wait_until_alone(SECONDS)
