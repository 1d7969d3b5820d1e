"""The watch over slots goes on when Spark cannot answer once."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from sparkdl_comm.errors import SlotsError
from sparkdl_comm.job import slot_watch
from sparkdl_comm.job.slot_watch import SlotWatch


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
    """Job 1 is ours, of stage 7, of which no task runs; two run of stage 8. Each fourth answer fails."""

    def __init__(self) -> None:
        self.asked = 0

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
        return SimpleNamespace(numActiveTasks=2 if stage == 8 else 0)


@pytest.mark.timeout(30)
def test_an_answer_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker()
    context = SimpleNamespace(
        statusTracker=lambda: tracker, _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))
    )
    monkeypatch.setattr(slot_watch, "JobTag", Tag)
    monkeypatch.setattr(slot_watch, "is_classic", lambda _: True)
    monkeypatch.setattr(slot_watch, "slots_now", lambda _: 3)
    monkeypatch.setattr(slot_watch, "_POLL_SECONDS", 0.01)
    with SlotWatch(SimpleNamespace(sparkContext=context), 3, 0.05) as watch:  # type: ignore[arg-type]
        watch._thread.join(20)
    assert isinstance(watch.error, SlotsError)
    assert "3 ranks waited 0.05 s" in watch.error.message
    assert "2 tasks of other jobs" in watch.error.message
    assert watch._tag.cancelled  # type: ignore[attr-defined]
