"""Task slots: how many ranks fit into the cluster, how many threads each rank gets, and waits for slots.

Spark would let tasks that get no slots wait forever, if other jobs hold the slots. So fits that run at the same time, as
in CrossValidator, wait in a queue, and a gang's tasks have a timeout.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.status import SparkStageInfo

from sparkdl_comm.errors import DeadlineError, SlotsError
from sparkdl_comm.job.interrupt import DISCONNECTED, JobTag
from sparkdl_comm.job.session import application_conf, is_classic, session_conf

_log = logging.getLogger(__name__)

_THREADS = "spark.executorEnv.OMP_NUM_THREADS"
_TASK_RESOURCE = re.compile(r"spark\.task\.resource\.(.+)\.amount")
#: Seconds of waiting for executors until a warning.
_WARN_AFTER_SECONDS = 2.0
#: Number of executors that Spark requests from YARN and Kubernetes unless spark.executor.instances is set.
_DEFAULT_INSTANCES = "2"
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")

#: Seconds between two log lines of a fit that waits.
LOG_INTERVAL_SECONDS = 60.0
_POLL_SECONDS = 0.5

#: Slots of applications whose executors did not all register in time, by application id.
_known_slots: dict[str, int] = {}


def check_slots(
    spark: SparkSession,
    num_workers: int | None,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Return the number of workers: ``num_workers``, or one per slot of the cluster if that is None.

    A slot is room for one task (``spark.task.cpus`` cores, and GPUs if tasks request them). Waits at most ``timeout``
    seconds for executors to register: for enough of them, or without ``num_workers`` for all that the application has
    requested. If some do not register, this is logged, and later calls for the application do not wait for them again.

    :raises SlotsError: there are fewer slots than ``num_workers``. The message gives their number, and settings for
        more.
    """
    if not is_classic(spark):  # a client cannot list executors. Spark itself checks slots before it starts ranks.
        conf = session_conf(spark)
        target = num_workers or _expected_slots(conf, conf.get("spark.master", ""))
        if target is None:
            raise SlotsError(
                "num_workers=None, but a Spark Connect client cannot know the number of slots unless "
                "spark.executor.instances and spark.executor.cores are set. Set num_workers"
            )
        return target
    master = spark.sparkContext.master or ""
    conf = application_conf(spark)
    expected = _expected_slots(conf, master)
    requested = 0 if num_workers else _expected_executors(conf, master) or 0
    target = num_workers or _known_slots.get(spark.sparkContext.applicationId) or expected or 1
    started_at, has_warned = clock(), False
    slots, registered = _count_slots(spark), _count_executors(spark)
    while clock() - started_at < timeout and (
        (slots < target and not (expected and slots >= expected))
        or (registered < requested and spark.sparkContext.applicationId not in _known_slots)
    ):
        if not has_warned and clock() - started_at >= _WARN_AFTER_SECONDS:
            has_warned = True
            _log.warning(
                "waiting for executors: %s so far, for up to %g s (spark.sparkdl.comm.slotTimeout)",
                f"{registered} of {requested}" if requested else f"{slots} slots of {target}",
                timeout,
            )
        sleep(0.2)
        slots, registered = _count_slots(spark), _count_executors(spark)
    if slots and registered < requested:
        _known_slots[spark.sparkContext.applicationId] = slots
        _log.warning(
            "training with %d of %d executors, so with %d ranks: the others did not register within %g s"
            " (spark.sparkdl.comm.slotTimeout). Set spark.executor.instances to what the cluster has room for, or give each"
            " executor less memory. To refuse fewer ranks, set num_workers",
            registered,
            requested,
            slots,
            timeout,
        )
    if slots < (num_workers or 1):
        shown = ", ".join(
            f"{key}={conf.get(key, 'not set')}"
            for key in (
                "spark.executor.instances",
                "spark.executor.cores",
                "spark.cores.max",
                "spark.task.cpus",
                *(key for key in conf if ".resource." in key),
            )
        )
        raise SlotsError(
            f"num_workers={num_workers or 'all slots'}, but the cluster (master {master}) "
            f"has {slots} slots after {clock() - started_at:.1f} s (the limit is {timeout:g} s, "
            "spark.sparkdl.comm.slotTimeout). All workers must run at once: ask for fewer workers, or start "
            f"the session with more executors or cores. Now: {shown}"
        )
    return num_workers or slots


def warn_about_threads(spark: SparkSession, ranks: int) -> None:
    """Warn if ranks compute with fewer threads than there are cores for each of them.

    Spark lets a task's Python compute with ``spark.task.cpus`` threads.
    """
    conf = application_conf(spark)
    cpus = int(conf.get("spark.task.cpus", "1"))
    slots = [slots_now(spark), _expected_slots(_cores_only(conf), conf.get("spark.master", ""))]
    cores = max((count for count in slots if count is not None), default=ranks) * cpus
    if cores // ranks > cpus and _THREADS not in conf:
        _log.warning(
            "each of the %d ranks computes with %d of its %d cores. Start the session with spark.task.cpus=%d, or with %s=%d",
            ranks,
            cpus,
            cores // ranks,
            cores // ranks,
            _THREADS,
            cores // ranks,
        )


def _cores_only(conf: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in conf.items() if _TASK_RESOURCE.fullmatch(key) is None}


def slots_now(spark: SparkSession) -> int | None:
    """Return how many tasks the registered executors can run at once. None for a Spark Connect client, which cannot
    know.
    """
    return _count_slots(spark) if is_classic(spark) else None


def executors(spark: SparkSession) -> set[str]:
    """Return the addresses of the registered executors. A new executor never has the address of a lost one.

    Empty for a Spark Connect client, which cannot know.
    """
    if not is_classic(spark):
        return set()
    context: Any = spark.sparkContext._jsc.sc()
    return set(context.getExecutorMemoryStatus().keys().mkString(" ").split())


def _count_slots(spark: SparkSession) -> int:
    """Return how many tasks of the default resource profile the registered executors can run at once."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _count_executors(spark: SparkSession) -> int:
    """Return the number of registered executors, without the driver."""
    return len(executors(spark)) - 1


def _expected_executors(conf: Mapping[str, str], master: str) -> int | None:
    """Return how many executors the application has requested, or None if the settings do not say."""
    cluster = _LOCAL_CLUSTER.fullmatch(master.strip())
    if cluster:
        return int(cluster[1])
    if master.startswith("local"):
        return None
    cores, most = conf.get("spark.executor.cores"), conf.get("spark.cores.max")
    if master.startswith("spark:") and cores and most:
        return int(most) // int(cores)
    instances = conf.get("spark.executor.instances", _DEFAULT_INSTANCES if _has_defaults(master) else None)
    return None if instances is None else int(instances)


def _expected_slots(conf: Mapping[str, str], master: str) -> int | None:
    """Return how many slots there will be once all executors have registered, or None if the settings do not say."""
    cluster = _LOCAL_CLUSTER.fullmatch(master.strip())
    if master.startswith("local") and not cluster:
        return 1
    count = _expected_executors(conf, master)
    cores = conf.get("spark.executor.cores", cluster[2] if cluster else "1" if _has_defaults(master) else None)
    return None if count is None or cores is None else count * _slots_per_executor(conf, cores)


def _has_defaults(master: str) -> bool:
    """Return whether Spark has defaults for the number of executors and their cores: on YARN and Kubernetes."""
    return master.startswith(("yarn", "k8s:"))


def _slots_per_executor(conf: Mapping[str, str], cores: str) -> int:
    """Return how many tasks fit into an executor, by its cores and by its GPUs or other resources.

    A task may use a fraction of such a resource.
    """
    slots = [int(cores) // int(conf.get("spark.task.cpus", "1"))]
    for key, text in conf.items():
        resource = _TASK_RESOURCE.fullmatch(key)
        if resource is not None and float(text) > 0:
            available, per_task = int(conf.get(f"spark.executor.resource.{resource[1]}.amount", "0")), float(text)
            slots.append(available * int(1 / per_task) if per_task < 1 else available // int(per_task))
    return min(slots)


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
            except DISCONNECTED:  # Spark's status changes while it is read, or the application ends
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
