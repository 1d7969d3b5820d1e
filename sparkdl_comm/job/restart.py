"""Starts the ranks again after one was lost, which Spark does not do: a barrier stage that fails, fails its job."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable
from typing import TypeVar

from pyspark.sql import SparkSession

from sparkdl_comm.errors import DeadlineError, RankLostError, SlotsError
from sparkdl_comm.job.memory import MemoryKills
from sparkdl_comm.job.slots import check_slots, executors
from sparkdl_comm.train.spec import TrainSpec

T = TypeVar("T")

_log = logging.getLogger(__name__)


def with_restarts(run: Callable[[TrainSpec], T], spec: TrainSpec, spark: SparkSession) -> tuple[T, int]:
    """``run(spec)``, and how many times it took to be started again.

    It is started again when a rank was lost: from the last checkpoint, if there are to be any, or from the beginning. Each
    time the gang has another attempt id and another secret, so that nobody who survived the one before can join. A missed
    deadline counts as a loss only if an executor is gone since. Whatever the user's code raises does not. Executors that are
    killed for their memory would be again: after the second time the ranks are not started again.

    :raises RankLostError: executors were killed for their memory; says what to set.
    :raises SlotsError: executors that were lost were not replaced within ``slotTimeout``.

    Also raises what ``run`` does.
    """
    restarts = 0
    kills = MemoryKills(spark)
    while True:
        before = executors(spark)
        kills.begin_attempt()
        try:
            return run(spec), restarts
        except (RankLostError, DeadlineError) as lost:
            gone = before - executors(spark)
            if isinstance(lost, DeadlineError) and not gone:
                raise
            kills.check(lost, is_last=restarts == spec.conf.max_restarts)
            if restarts == spec.conf.max_restarts:
                raise
            restarts += 1
            where = (
                "the beginning" if spec.checkpoints is None else f"the last checkpoint in {spec.checkpoints.directory}"
            )
            _log.warning(
                "%s\nStarting again from %s (%d of %d, spark.sparkdl.comm.maxRestarts)",
                lost.message,
                where,
                restarts,
                spec.conf.max_restarts,
            )
            try:
                check_slots(spark, spec.world, spec.conf.slot_timeout)
            except SlotsError as error:
                raise error from lost
            kills.check(lost, is_last=False)
        spec = _next(spec)


def _next(spec: TrainSpec) -> TrainSpec:
    """The gang that takes the place of the one of ``spec``."""
    checkpoints = spec.checkpoints and dataclasses.replace(spec.checkpoints, resume=True)
    return dataclasses.replace(
        spec, attempt_id=secrets.token_hex(8), secret=secrets.token_bytes(32), checkpoints=checkpoints
    )
