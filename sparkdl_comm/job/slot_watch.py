"""Timeout for a gang's tasks that get no slots because other jobs hold them. Spark would let them wait forever."""

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
    """Context that cancels the jobs which this thread starts inside it, if no task of a stage starts in time.

    While other jobs of this application hold the slots, the stage may wait ``turn_timeout`` seconds. Such a job is, for
    example, the evaluation of another model by the same CrossValidator. If no job holds them, the stage may wait
    ``slot_timeout`` seconds. A client of Spark Connect cannot see tasks, so there nothing is watched.
    """

    def __init__(self, spark: SparkSession, ranks: int, slot_timeout: float, turn_timeout: float) -> None:
        self._spark, self._ranks = spark, ranks
        self._slot_timeout, self._turn_timeout = slot_timeout, turn_timeout
        self._tag = JobTag(spark)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sparkdl-slots", daemon=True)
        #: Reason why the jobs were cancelled, or None.
        self.error: SlotsError | None = None

    def __enter__(self) -> SlotWatch:
        if is_classic(self._spark):
            self._tag.__enter__()
            self._thread.start()
        return self

    def satisfied(self) -> None:
        """Stop watching, because the tasks run. Spark's own counts can be wrong later if it drops events."""
        self._over.set()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if is_classic(self._spark):
            self._thread.join()
            self._tag.__exit__(*exc)

    def _look(self) -> None:
        waiting: float | None = None  # time since which no task runs
        idle: float | None = None  # time since which there are free slots for all tasks
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
            except Py4JError:  # Spark's status changes while it is read, or the application ends
                _log.debug("cannot read the state of slots", exc_info=True)

    def _timed_out(self, held: bool, busy: int, slots: int | None) -> SlotsError:
        limit = (
            f"{self._turn_timeout:g} s (spark.sparkdl.comm.turnTimeout)"
            if held
            else f"{self._slot_timeout:g} s (spark.sparkdl.comm.slotTimeout)"
        )
        return SlotsError(
            f"{self._ranks} ranks waited {limit} for as many free slots: the cluster has {slots}, and {busy} tasks of other"
            " jobs of this application are running. Wait for these tasks, reduce num_workers, or start the session with"
            " more executors or cores"
        )

    def _starved(self) -> bool:
        """Return whether a stage of the watched jobs is active, and no task of it runs."""
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
