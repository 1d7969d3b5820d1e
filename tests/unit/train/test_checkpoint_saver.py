"""When checkpoints are due, and how they are written while training goes on; the snapshots are made elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.storage.files import LocalStorage
from sparkdl_comm.train.checkpoint import Cadence, Saver
from sparkdl_comm.train.spec import Checkpoints
from tests.unit.gang_helpers import SECONDS, gang_of


def at(step: int) -> Any:
    """What a saver asks a loop, if the snapshot is made elsewhere."""
    return SimpleNamespace(version=step)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing waits for it to be set."""
    go, create = threading.Event(), LocalStorage.create

    def wait(self: LocalStorage, name: str, write: Any) -> Any:
        assert go.wait(SECONDS)
        return create(self, name, write)

    monkeypatch.setattr(LocalStorage, "create", wait)
    monkeypatch.setattr("sparkdl_comm.train.checkpoint.snapshot", lambda loop, gang, timeout: {"rank-0": {}})
    return go


def test_training_goes_on_while_one_is_written_and_waits_with_the_next(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    with gang_of(1, attempt="e") as (gang,):
        save = Saver(Checkpoints(str(tmp_path), 2, None, keep=2, resume=False, run="r"), {}, gang, SECONDS)
        for step in (1, 2, 3):
            save(at(step))
        assert list(tmp_path.iterdir()) == []
        threading.Timer(0.3, slow_disk.set).start()
        save(at(4))
        assert slow_disk.is_set()
        assert (tmp_path / "step-00000002").is_dir()
        save.wait()
        assert (tmp_path / "step-00000004").is_dir()
        save.close()


def test_a_disk_that_hangs(tmp_path: Path, slow_disk: threading.Event) -> None:
    with gang_of(1, attempt="e") as (gang,):
        save = Saver(Checkpoints(str(tmp_path), 1, None, keep=2, resume=False, run="r"), {}, gang, 0.2)
        save(at(1))
        with pytest.raises(DeadlineError, match=r"within 0\.2 s. Write less often .*spark\.sparkdl\.comm\.timeout"):
            save(at(2))
        slow_disk.set()
        save.close()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("steps", "seconds", "expected"), [
    (3, None, [3, 6, 9, 12]),
    (None, 5.0, [5, 10, 15]),
    (7, 5.0, [5, 7, 12, 14]),
])  # fmt: skip
def test_cadence(steps: int | None, seconds: float | None, expected: list[int]) -> None:
    """One second a step."""
    found: dict[int, list[int]] = {0: [], 1: []}
    looks: dict[int, int] = {0: 0, 1: 0}

    with gang_of(2) as gangs:

        def one(gang: Gang) -> None:
            clock = Clock()
            gather = gang.all_gather

            def counting(value: bytes, timeout: float) -> list[bytes]:
                looks[gang.rank] += 1
                return gather(value, timeout)

            gang.all_gather = counting  # type: ignore[method-assign]
            cadence = Cadence(steps, seconds, gang, SECONDS, clock)
            for step in range(1, 16 if steps != 3 else 13):
                clock.now += 1.0 if gang.rank == 0 else 77.0  # only rank 0's counts
                if cadence.is_due(step):
                    found[gang.rank].append(step)

        threads = [threading.Thread(target=one, args=(gang,)) for gang in gangs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert found[0] == found[1] == expected
    assert looks[0] == looks[1]
    assert looks[0] == 0 if seconds is None else looks[0] < 15


def test_steps_that_are_looked_at_now_and_then() -> None:
    """As at the ends of epochs of so many updates: the first after each multiple."""
    with gang_of(1) as (gang,):
        cadence = Cadence(10, None, gang, SECONDS, Clock(), start_step=20)
        assert [step for step in (22, 29, 31, 38, 52, 59, 60) if cadence.is_due(step)] == [31, 52, 60]


def test_rarely_asked() -> None:
    """A thousand steps of a millisecond for one checkpoint: ranks talk a dozen times."""
    with gang_of(1) as (gang,):
        clock, looks = Clock(), 0
        gather = gang.all_gather

        def counting(value: bytes, timeout: float) -> list[bytes]:
            nonlocal looks
            looks += 1
            return gather(value, timeout)

        gang.all_gather = counting  # type: ignore[method-assign]
        cadence = Cadence(None, 1.0, gang, SECONDS, clock)
        due = []
        for step in range(1, 1100):
            clock.now += 0.001
            if cadence.is_due(step):
                due.append(step)
    assert due in ([1000], [1001])
    assert looks < 30
