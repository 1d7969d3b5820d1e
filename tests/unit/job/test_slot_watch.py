"""The watch over slots: how long ranks wait for which jobs, and that it goes on when Spark cannot answer once."""

import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from sparkdl_comm.errors import SlotsError
from sparkdl_comm.job import slots
from sparkdl_comm.job.slots import SlotWatch


class Tag:
    name = "ours"

    def __init__(self, _: object) -> None:
        self.cancelled = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled = True


class Tracker:
    """Job 1 is ours, of stage 7, of which no task runs; ``busy`` tasks run of stage 8. Each fourth answer fails."""

    def __init__(self, busy: int) -> None:
        self.asked = 0
        self.busy = busy

    def getJobIdsForTag(self, tag: str) -> list[int]:  # noqa: N802 - Spark's name
        self.asked += 1
        if self.asked % 4 == 1:
            raise Py4JError("a stage is gone that there was just now")
        assert tag == Tag.name
        return [1]

    def getJobInfo(self, _: int) -> Any:  # noqa: N802
        return SimpleNamespace(stageIds=[7])

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [7, 8]

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        return SimpleNamespace(numActiveTasks=self.busy if stage == 8 else 0)


def watch_of(patch: pytest.MonkeyPatch, busy: int, slot_timeout: float, turn_timeout: float) -> SlotWatch:
    """Return a watch for 3 ranks on a cluster of 4 slots."""
    tracker = Tracker(busy)
    context = SimpleNamespace(
        statusTracker=lambda: tracker, _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))
    )
    spark: Any = SimpleNamespace(sparkContext=context)
    patch.setattr(slots, "JobTag", Tag)
    patch.setattr(slots, "is_classic", lambda _: True)
    patch.setattr(slots, "slots_now", lambda _: 4)
    patch.setattr(slots, "_POLL_SECONDS", 0.001)
    return SlotWatch(spark, 3, slot_timeout, turn_timeout)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("busy", "slot_timeout", "turn_timeout", "told"),
    [
        (
            0,
            0.05,
            60.0,
            r"3 ranks waited 0\.05 s \(spark\.sparkdl\.comm\.slotTimeout\).* has 4, and 0 tasks of other jobs",
        ),
        (1, 0.05, 60.0, r"0\.05 s .*slotTimeout\).* and 1 tasks"),  # there is room beside it, and yet nothing runs
        (2, 0.01, 0.2, r"3 ranks waited 0\.2 s \(spark\.sparkdl\.comm\.turnTimeout\).* and 2 tasks of other jobs"),
    ],
)
def test_how_long_ranks_wait_for_slots(
    monkeypatch: pytest.MonkeyPatch, busy: int, slot_timeout: float, turn_timeout: float, told: str
) -> None:
    """An answer that fails does not end the watch."""
    with watch_of(monkeypatch, busy, slot_timeout, turn_timeout) as watch:
        watch._thread.join(20)
    assert isinstance(watch.error, SlotsError)
    assert re.search(told, watch.error.message)
    assert watch._tag.cancelled  # type: ignore[attr-defined]


@pytest.mark.timeout(30)
def test_who_waits_for_a_turn_says_so_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a clock that goes on by a second each time it is read, in ten minutes."""
    seconds = itertools.count()
    monkeypatch.setattr(slots, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    with watch_of(monkeypatch, 2, 30.0, 600.0) as watch:
        watch._thread.join(20)
    assert watch.error is not None
    assert 8 <= caplog.text.count("3 ranks wait for slots: 2 tasks of other jobs are running") <= 10
