"""Task slots: how many ranks fit into the cluster, and how many threads each rank gets."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from sparkdl_comm.errors import SlotsError
from sparkdl_comm.job.session import application_conf, is_classic, session_conf

_log = logging.getLogger(__name__)

_THREADS = "spark.executorEnv.OMP_NUM_THREADS"
_TASK_RESOURCE = re.compile(r"spark\.task\.resource\.(.+)\.amount")
#: Seconds of waiting for executors until a warning.
_WARN_AFTER_SECONDS = 2.0
#: Number of executors that Spark requests from YARN and Kubernetes unless spark.executor.instances is set.
_DEFAULT_INSTANCES = "2"
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")

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
