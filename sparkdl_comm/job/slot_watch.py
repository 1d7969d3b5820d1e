"""Waits for slots: the queue of fits that run at the same time (as in CrossValidator), and a timeout for a gang's tasks.

Spark would let tasks that get no slots wait forever, if other jobs hold the slots.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.status import SparkStageInfo

from sparkdl_comm.errors import DeadlineError, SlotsError
from sparkdl_comm.job.interrupt import JobTag
from sparkdl_comm.job.session import is_classic
from sparkdl_comm.job.slots import slots_now

#: Seconds between two log lines of a fit that waits.
LOG_INTERVAL_SECONDS = 60.0


class AdmissionQueue:
    """Queue that admits gangs first come, first served, each once there are slots for all of its ranks.

    Without this queue, Spark would hold back the tasks of a gang that does not fit beside another one. The time that
    this gang waits would then count as time without slots. A waiting gang logs its state every minute.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: list[object] = []
        self._used_slots = 0

    @contextmanager
    def admit(self, ranks: int, slots: int | None, timeout: float) -> Iterator[None]:
        """Wait for admission, then hold one slot per rank until the context ends.

        :param ranks: number of ranks of the gang.
        :param slots: number of slots in the whole cluster. None: unknown, so the gang is admitted only while no other
            runs.
        :param timeout: seconds to wait.
        :raises DeadlineError: the gang was not admitted within ``timeout`` seconds.
        """
        ticket = object()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._tickets.append(ticket)
            try:
                while not self._changed.wait_for(
                    lambda: self._tickets[0] is ticket and self._fits(ranks, slots),
                    max(0.0, min(LOG_INTERVAL_SECONDS, deadline - time.monotonic())),
                ):
                    before = self._tickets.index(ticket)
                    state = f"{before} others are before it, and {self._used_slots} of {slots} slots in use"
                    if time.monotonic() >= deadline:
                        raise DeadlineError(
                            f"a fit with {ranks} ranks waited {timeout:g} s for its turn (spark.sparkdl.comm.turnTimeout):"
                            f" {state}. Set turnTimeout to more than the other fits of this application take, or run fewer"
                            " fits at a time (parallelism of CrossValidator)"
                        )
                    _log.warning("a fit with %d ranks waits for its turn: %s", ranks, state)
                self._used_slots += ranks
            finally:
                self._tickets.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used_slots -= ranks
                self._changed.notify_all()

    def _fits(self, ranks: int, slots: int | None) -> bool:
        return self._used_slots == 0 or (slots is not None and self._used_slots + ranks <= slots)


#: The queue of this process. A process has one Spark application.
ADMISSION = AdmissionQueue()


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
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sparkdl-slots", daemon=True)
        #: Reason why the jobs were cancelled, or None.
        self.error: SlotsError | None = None

    def __enter__(self) -> SlotWatch:
        if is_classic(self._spark):
            self._tag.__enter__()
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop watching, because the tasks run. Spark's own counts can be wrong later if it drops events."""
        self._stop_event.set()

    def __exit__(self, *exc: object) -> None:
        self._stop_event.set()
        if is_classic(self._spark):
            self._thread.join()
            self._tag.__exit__(*exc)

    def _watch(self) -> None:
        waiting_since: float | None = None  # time since which no task runs
        idle_since: float | None = None  # time since which there are free slots for all tasks
        logged_at = 0.0
        while not self._stop_event.wait(_POLL_SECONDS):
            now = time.monotonic()
            try:
                if not self._is_starved():
                    waiting_since = idle_since = None
                    continue
                other_tasks, slots = self._count_other_tasks(), slots_now(self._spark)
                if waiting_since is None:
                    waiting_since = logged_at = now
                is_blocked = other_tasks > 0 and (slots is None or other_tasks + self._ranks > slots)
                idle_since = None if is_blocked else now if idle_since is None else idle_since
                if now - waiting_since > self._turn_timeout or (
                    idle_since is not None and now - idle_since > self._slot_timeout
                ):
                    self.error = self._timeout_error(is_blocked, other_tasks, slots)
                    self._tag.cancel()
                    return
                if is_blocked and now - logged_at > LOG_INTERVAL_SECONDS:
                    logged_at = now
                    _log.warning(
                        "%d ranks wait for slots: %d tasks of other jobs are running", self._ranks, other_tasks
                    )
            except Py4JError:  # Spark's status changes while it is read, or the application ends
                _log.debug("cannot read the state of slots", exc_info=True)

    def _timeout_error(self, is_blocked: bool, other_tasks: int, slots: int | None) -> SlotsError:
        limit = (
            f"{self._turn_timeout:g} s (spark.sparkdl.comm.turnTimeout)"
            if is_blocked
            else f"{self._slot_timeout:g} s (spark.sparkdl.comm.slotTimeout)"
        )
        return SlotsError(
            f"{self._ranks} ranks waited {limit} for as many free slots: the cluster has {slots}, and {other_tasks} tasks"
            " of other jobs of this application are running. Wait for these tasks, reduce num_workers, or start the session"
            " with more executors or cores"
        )

    def _is_starved(self) -> bool:
        """Return whether a stage of the watched jobs is active, and no task of it runs."""
        return any(stage.numActiveTasks == 0 for stage in self._active_stages(is_own=True))

    def _count_other_tasks(self) -> int:
        return sum(stage.numActiveTasks for stage in self._active_stages(is_own=False))

    def _active_stages(self, *, is_own: bool) -> list[SparkStageInfo]:
        tracker = self._spark.sparkContext.statusTracker()
        context: Any = self._spark.sparkContext._jsc.sc()
        jobs = [tracker.getJobInfo(job) for job in context.statusTracker().getJobIdsForTag(self._tag.name)]
        own_stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [
            tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds() if (stage in own_stages) == is_own
        ]
        return [stage for stage in stages if stage is not None]
