"""Restart of the ranks after one was lost. Spark does not do this: a barrier stage that fails, fails its job.

Executors are often lost because they use too much memory outside of the JVM's heap, where PyTorch and the rows are.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm.errors import DeadlineError, RankLostError, SlotsError, SparkdlCommError
from sparkdl_comm.job.cached_rows import run_with_cache
from sparkdl_comm.job.driver_listener import OnProgress
from sparkdl_comm.job.launch import TrainingResult, was_killed
from sparkdl_comm.job.session import application_conf, is_classic, is_stopped
from sparkdl_comm.job.slots import check_slots, executors
from sparkdl_comm.job.task import ADDRESS_SPACE_KEY, OVERHEAD_KEY
from sparkdl_comm.job.trained_module import keep_tensors
from sparkdl_comm.train.spec import TrainSpec

_DAEMON = "spark.python.daemon.module"
_log = logging.getLogger(__name__)


def warn_about_limit(spark: SparkSession) -> None:
    """Warn if Spark limits the address space of the executors' Python."""
    limit = application_conf(spark).get(ADDRESS_SPACE_KEY)
    if limit:
        _log.warning(
            "%s=%s limits the address space that a Python worker maps, not the memory it uses. PyTorch maps many times"
            " what it uses. Unset it, and set %s to what Python needs",
            ADDRESS_SPACE_KEY,
            limit,
            OVERHEAD_KEY,
        )


def killed_executors(spark: SparkSession) -> dict[str, str]:
    """Return Spark's reasons for executors that were killed for their memory, by executor. Empty for a Spark Connect
    client.
    """
    if not is_classic(spark):
        return {}
    context: Any = spark.sparkContext._jsc.sc()
    listed = context.statusStore().executorList(False)
    reasons = {}
    for each in (listed.apply(index) for index in range(listed.size())):
        reason = each.removeReason()
        if reason.isDefined() and was_killed(reason.get()):
            reasons[each.id()] = reason.get()
    return reasons


class MemoryKillCounter:
    """Counter of a fit's attempts that ended because executors were killed for their memory."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known_executors: set[str] = set()
        self._is_counted = False
        self._reason = ""
        self._count = 0

    def begin_attempt(self) -> None:
        """Note which executors were killed before this attempt."""
        self._known_executors = set(killed_executors(self._spark))
        self._is_counted = False

    def check(self, error: SparkdlCommError, is_last: bool) -> None:
        """Count this attempt if it ended because an executor was killed.

        Spark may learn the reason late, so call this again after executors have been replaced.

        :raises RankLostError: the attempt ended so, and it is the fit's second one that did, or ``is_last``.
        """
        reasons = [
            reason for name, reason in killed_executors(self._spark).items() if name not in self._known_executors
        ]
        text = error.message
        if not self._is_counted and (reasons or was_killed(text)):
            self._is_counted = True
            self._count += 1
            self._reason = reasons[0] if reasons else text
        if self._is_counted and (is_last or self._count == 2):
            times = (
                "twice, so a third attempt would fail too"
                if self._count == 2
                else "and maxRestarts allows no other attempt"
            )
            raise RankLostError(
                f"executors were killed for their memory {times}. {advise(self._spark)}. Spark says: {self._reason}",
                rank=error.rank,
            ) from error


def advise(spark: SparkSession) -> str:
    """Return advice on settings for executors that are killed for their memory."""
    conf = application_conf(spark)
    text = (
        f"PyTorch and the rows are outside of the JVM's heap: increase {OVERHEAD_KEY} (now"
        f" {conf.get(OVERHEAD_KEY, 'not set: a tenth of spark.executor.memory, at least 384 MiB')})"
    )
    if _DAEMON in conf:
        text += f", and unset {_DAEMON}={conf[_DAEMON]}: YARN counts the memory that its workers share once per worker"
    return text


def run_with_restarts(rows: DataFrame, spec: TrainSpec, on_progress: OnProgress) -> tuple[TrainingResult, int]:
    """Train as :func:`~sparkdl_comm.job.cached_rows.run_with_cache`. Return its result, and how many times the ranks were
    restarted.

    They are restarted when one was lost: from the last checkpoint if the run has checkpoints, otherwise from the
    beginning. Each attempt has a new attempt id and a new secret, so that no rank of the attempt before can join. A
    missed deadline counts as a loss only if an executor has gone since. Exceptions of the user's code do not count.
    Executors killed for their memory would be killed again, so after the second such attempt there is no restart. If a
    rank was lost after the driver had received the trained tensors, errors of later attempts have these tensors, too.

    :raises RankLostError: executors were killed for their memory. The message says what to set.
    :raises SlotsError: lost executors were not replaced within ``slotTimeout``.

    Also raises what ``run_with_cache`` does.
    """
    spark = rows.sparkSession
    restarts = 0
    kills = MemoryKillCounter(spark)
    with ExitStack() as stack:
        while True:
            executors_before = executors(spark)
            kills.begin_attempt()
            try:
                return run_with_cache(rows, spec, on_progress), restarts
            except (RankLostError, DeadlineError) as lost:
                if lost.state_dict is not None:
                    stack.close()  # the driver keeps one model only
                    stack.enter_context(keep_tensors(lost.state_dict))
                if is_stopped(spark):
                    raise
                lost_executors = executors_before - executors(spark)
                if isinstance(lost, DeadlineError) and not lost_executors:
                    raise
                kills.check(lost, is_last=restarts == spec.conf.max_restarts)
                if restarts == spec.conf.max_restarts:
                    raise
                restarts += 1
                restart_point = (
                    "the beginning"
                    if spec.checkpoints is None
                    else f"the last checkpoint in {spec.checkpoints.directory}"
                )
                _log.warning(
                    "%s\nStarting again from %s (%d of %d, spark.sparkdl.comm.maxRestarts)",
                    lost.message,
                    restart_point,
                    restarts,
                    spec.conf.max_restarts,
                )
                try:
                    check_slots(spark, spec.world, spec.conf.slot_timeout)
                except SlotsError as error:
                    raise error from lost
                kills.check(lost, is_last=False)
            spec = _next_attempt(spec)


def _next_attempt(spec: TrainSpec) -> TrainSpec:
    """Return the spec of the attempt that follows ``spec``."""
    checkpoints = spec.checkpoints and dataclasses.replace(spec.checkpoints, resume=True)
    return dataclasses.replace(
        spec, attempt_id=secrets.token_hex(8), secret=secrets.token_bytes(32), checkpoints=checkpoints
    )
