"""Restart of the ranks after one was lost. Spark does not do this: a barrier stage that fails, fails its job."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable
from typing import TypeVar

from pyspark.sql import SparkSession

from sparkdl_comm.errors import DeadlineError, RankLostError, SlotsError
from sparkdl_comm.job.memory import MemoryKillCounter
from sparkdl_comm.job.slots import check_slots, executors
from sparkdl_comm.train.spec import TrainSpec

T = TypeVar("T")

_log = logging.getLogger(__name__)


def run_with_restarts(run: Callable[[TrainSpec], T], spec: TrainSpec, spark: SparkSession) -> tuple[T, int]:
    """Return ``run(spec)``, and how many times it was restarted.

    It is restarted when a rank was lost: from the last checkpoint if the run has checkpoints, otherwise from the
    beginning. Each attempt has a new attempt id and a new secret, so that no rank of the attempt before can join. A
    missed deadline counts as a loss only if an executor has gone since. Exceptions of the user's code do not count.
    Executors killed for their memory would be killed again, so after the second such attempt there is no restart.

    :raises RankLostError: executors were killed for their memory. The message says what to set.
    :raises SlotsError: lost executors were not replaced within ``slotTimeout``.

    Also raises what ``run`` does.
    """
    restarts = 0
    kills = MemoryKillCounter(spark)
    while True:
        executors_before = executors(spark)
        kills.begin_attempt()
        try:
            return run(spec), restarts
        except (RankLostError, DeadlineError) as lost:
            lost_executors = executors_before - executors(spark)
            if isinstance(lost, DeadlineError) and not lost_executors:
                raise
            kills.check(lost, is_last=restarts == spec.conf.max_restarts)
            if restarts == spec.conf.max_restarts:
                raise
            restarts += 1
            restart_point = (
                "the beginning" if spec.checkpoints is None else f"the last checkpoint in {spec.checkpoints.directory}"
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
