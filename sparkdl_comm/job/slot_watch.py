"""Notices that a gang's tasks do not start because other jobs hold the slots; Spark would let them wait for ever."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.status import SparkStageInfo

from sparkdl_comm.errors import SlotsError
from sparkdl_comm.job.admission import TELL_SECONDS
from sparkdl_comm.job.interrupt import JobTag
from sparkdl_comm.job.session import is_classic
from sparkdl_comm.job.slots import slots_now

_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)


class SlotWatch:
    """Context that cancels the jobs which this thread starts inside it when none of the tasks of a stage comes to run.

    While other jobs of this application hold the slots, such as the evaluation of another model by the same CrossValidator,
    the stage has its turn to wait for: ``turn_timeout`` seconds. Where nothing holds them, ``slot_timeout`` seconds. A client
    of Spark Connect cannot see tasks, so nothing is watched there.
    """

    def __init__(self, spark: SparkSession, ranks: int, slot_timeout: float, turn_timeout: float) -> None:
        self._spark, self._ranks = spark, ranks
        self._slot_timeout, self._turn_timeout = slot_timeout, turn_timeout
        self._tag = JobTag(spark)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sparkdl-slots", daemon=True)
        #: Why the jobs were cancelled, if they were.
        self.error: SlotsError | None = None

    def __enter__(self) -> SlotWatch:
        if is_classic(self._spark):
            self._tag.__enter__()
            self._thread.start()
        return self

    def satisfied(self) -> None:
        """The tasks run: no more looking, as Spark's own books can be wrong when it drops events."""
        self._over.set()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if is_classic(self._spark):
            self._thread.join()
            self._tag.__exit__(*exc)

    def _look(self) -> None:
        waiting: float | None = None  # since when no task runs
        idle: float | None = None  # and since when there are slots for them
        told = 0.0
        while not self._over.wait(_POLL_SECONDS):
            now = time.monotonic()
            try:
                if not self._starved():
                    waiting = idle = None
                    continue
                busy, slots = self._busy(), slots_now(self._spark)
                if waiting is None:
                    waiting = told = now
                held = busy > 0 and (slots is None or busy + self._ranks > slots)
                idle = None if held else now if idle is None else idle
                if now - waiting > self._turn_timeout or (idle is not None and now - idle > self._slot_timeout):
                    self.error = self._timed_out(held, busy, slots)
                    self._tag.cancel()
                    return
                if held and now - told > TELL_SECONDS:
                    told = now
                    _log.warning("%d ranks wait for slots: %d tasks of other jobs are running", self._ranks, busy)
            except Py4JError:  # Spark's books change while they are read; or the application ends, and our jobs with it
                _log.debug("slots could not be looked at", exc_info=True)

    def _timed_out(self, held: bool, busy: int, slots: int | None) -> SlotsError:
        limit = (
            f"{self._turn_timeout:g} s (spark.sparkdl.comm.turnTimeout)"
            if held
            else f"{self._slot_timeout:g} s (spark.sparkdl.comm.slotTimeout)"
        )
        return SlotsError(
            f"{self._ranks} ranks waited {limit} for as many free slots: the cluster has {slots}, and {busy} tasks of other"
            " jobs of this application are running. Wait for these, set num_workers to less, or start the session with more"
            " executors or cores"
        )

    def _starved(self) -> bool:
        """Whether a stage of ours could run, and no task of it does."""
        return any(stage.numActiveTasks == 0 for stage in self._active_stages(ours=True))

    def _busy(self) -> int:
        return sum(stage.numActiveTasks for stage in self._active_stages(ours=False))

    def _active_stages(self, *, ours: bool) -> list[SparkStageInfo]:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in self._scala_tracker().getJobIdsForTag(self._tag.name)]
        own = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds() if (stage in own) == ours]
        return [stage for stage in stages if stage is not None]

    def _scala_tracker(self) -> Any:
        context: Any = self._spark.sparkContext._jsc.sc()
        return context.statusTracker()
