"""Driver's side of one run: starts the ranks, and receives their progress and the trained tensors."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm.errors import (
    ConfError,
    GangError,
    InputError,
    RankFailedError,
    RankLostError,
    SlotsError,
    SparkdlCommError,
)
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.job.broadcasts import broadcast_if_large
from sparkdl_comm.job.driver_listener import LOCAL_HOST, DriverListener, OnProgress
from sparkdl_comm.job.import_check import ImportCheck
from sparkdl_comm.job.interrupt import JobTag, describe_jobs, run_in_thread
from sparkdl_comm.job.rank import make_rank_fn
from sparkdl_comm.job.session import driver_bind, driver_host, is_stopped
from sparkdl_comm.job.shipping import missing_module_error
from sparkdl_comm.job.slots import SlotWatch
from sparkdl_comm.job.summary import RankReport
from sparkdl_comm.job.task import LOADING_PHASE, RANK_SCHEMA, ROWS_GONE_PREFIX, GangSpec, RankFn, RowsGoneError
from sparkdl_comm.job.trained_module import keep_tensors
from sparkdl_comm.report.progress import ProgressBar
from sparkdl_comm.train.spec import TrainSpec

#: Result of a run: the trained tensors by name, on the CPU, and one report per rank.
TrainingResult: TypeAlias = tuple[dict[str, torch.Tensor], list[RankReport]]

_log = logging.getLogger(__name__)

#: Spark's message about a barrier stage in which a task ended without a report of this package.
_TASK_FAILED = re.compile(
    r"barrier task \w+\(\d+, (?P<rank>\d+)\) finished unsuccessfully\.\s*(?P<reason>.*?)\s*(?:\n\tat |\Z)", re.DOTALL
)
#: End of a message that Spark Connect 3.5 has truncated to 2048 characters.
_TRUNCATED = "..."
#: Seconds to wait for rank 0's own report of the failure when Spark's message is truncated.
_FAILURE_WAIT_SECONDS = 3.0
_TOO_FEW_SLOTS = "[SPARK-24819]"
_CANCELLED = re.compile(r"Job \d+ cancelled\b[^\n]*")
#: Spark's messages if it cannot start the Python of executors, or if its version differs from the driver's.
_NO_PYTHON = re.compile(r"Cannot run program \"(?P<python>[^\"]*)\"")
_OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH]"
_SET_PYTHON = (
    "let them use the driver's Python version, by the environment variable PYSPARK_PYTHON, set before the session starts, or"
    " by spark-submit --conf spark.pyspark.python=..."
)
#: Message of YARN or Kubernetes about a container that was killed for its memory, by them or by the kernel. It does not
#: match a standalone worker's "Command exited with code 137". That worker has no containers, so anybody may have killed
#: the process.
_KILLED = re.compile(
    r"exceeding (?:physical|virtual) memory limits|exit (?:code|status)(?: is|:)? ?(?:137|-104)\b|OOMKilled",
    re.IGNORECASE,
)
_PYTHON_RAISED = re.compile(
    r"(?P<traceback>Traceback \(most recent call last\):\n.*?^(?P<error>\w[\w.]*)(?:: (?P<message>.*))?)\Z",
    re.DOTALL | re.MULTILINE,
)


def run_once(partitions: DataFrame, spec: TrainSpec, on_progress: OnProgress) -> TrainingResult:
    """Train with ``spec.world`` ranks at once.

    :param partitions: one partition per rank, with the columns that ``spec.rows`` names (see
        :class:`sparkdl_comm.data.fields.RowFormat`), or of any rows for ranks that find their rows in ``spec.cache``.
    :param spec: all parameters but ``driver_address``, which is filled in here.
    :param on_progress: receives rank 0's progress messages, as the progress bar does.
    :raises RowsGoneError: ranks did not find their rows in ``spec.cache``.
    :raises SparkdlCommError: the failure of the first rank that failed. Spark's own exception is its cause if no rank
        reported a failure, otherwise its context. A ResultError if the reason is unknown, and the tensors have arrived.
    """
    tensors, reports = run_gang(
        lambda listener: run_tasks(
            partitions,
            make_rank_fn(dataclasses.replace(spec, driver_address=listener.address)),
            listener.check,
            _describe(spec),
        ),
        spec,
        partitions.sparkSession,
        on_progress,
        is_model=True,
    )
    return tensors, [RankReport.from_json(report) for report in reports]


def _describe(spec: TrainSpec) -> str:
    """Return the description of a gang's job for the Spark UI."""
    epochs = "1 epoch" if spec.epochs == 1 else f"{spec.epochs} epochs"
    resumed = " from the last checkpoint" if spec.checkpoints is not None and spec.checkpoints.resume else ""
    return f"sparkdl_comm fit: {spec.strategy}, {epochs} on {spec.world} ranks{resumed}"


def run_tasks(partitions: DataFrame, rank_fn: RankFn, check: Callable[[], None], description: str) -> list[str]:
    """Run one barrier task for each partition of ``partitions``, all at once, and return their reports.

    :param check: called every second. If it raises, the tasks are cancelled.
    :param description: of the job, for the Spark UI.
    :raises RowsGoneError: a rank reported that rows are gone. The message is the first one that is not empty.
    :raises Exception: Spark's, if a task failed. Its text contains what the rank reported.
    """
    spark = partitions.sparkSession
    with broadcast_if_large(spark, rank_fn) as function, JobTag(spark) as tag, describe_jobs(spark, description):
        tasks = partitions.mapInArrow(ImportCheck(function, is_rank=True), RANK_SCHEMA, barrier=True)
        try:
            rows = run_in_thread(spark, tasks.collect, check)
        except RankLostError:
            tag.cancel()
            raise
    reports = [row["report"] for row in rows]
    reasons = [report.removeprefix(ROWS_GONE_PREFIX) for report in reports if report.startswith(ROWS_GONE_PREFIX)]
    if reasons:
        raise RowsGoneError(next(filter(None, reasons), ""))
    return reports


def run_gang(
    start: Callable[[DriverListener], list[str]],
    spec: GangSpec,
    spark: SparkSession | None,
    on_progress: OnProgress | None = None,
    is_model: bool = False,
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Run a gang, and receive the tensors that rank 0 sends.

    :param start: runs the ranks, given the driver's listener, and returns their reports.
    :param spark: session of the ranks' tasks. None: the ranks are processes of this machine.
    :param is_model: the tensors are a model's (``module_state.pack_state``). If the run fails, its error has
        the tensors that have arrived.
    :return: the tensors that rank 0 sent, and every rank's report.
    :raises SparkdlCommError: as :func:`run_once`.
    """
    conf, port = spec.conf, spec.conf.driver.port
    slots = None if spark is None else SlotWatch(spark, spec.world, conf.slot_timeout, conf.turn_timeout)
    with ProgressBar(conf.progress) as bar:

        def on_message(message: dict[str, Any]) -> None:
            if slots is not None:
                slots.stop()
            _show(bar, message)
            if on_progress is not None and "warning" not in message:
                on_progress(message)

        listener = DriverListener(
            LOCAL_HOST if spark is None else driver_host(spark, conf),
            range(port, port + 1) if port else None,
            spec.secret,
            on_message,
            on_log=bar.log,
            attempt=spec.attempt_id,
            world=spec.world,
            timeout=conf.timeout,
            bind=None if spark is None else driver_bind(spark),
        )
        try:
            with slots or nullcontext():
                reports = start(listener)
            if not reports:  # Spark runs no task for a relation that it knows to be empty
                raise InputError("nothing to train on: the DataFrame has no rows")
            # Already here: rank 0 sends them before it reports.
            tensors = listener.wait_for_tensors(time.monotonic() + conf.timeout)
        except Exception as error:
            failure = Failure.find(str(error))
            if failure is None and str(error).endswith(_TRUNCATED):
                failure = listener.wait_for_failure(time.monotonic() + _FAILURE_WAIT_SECONDS)
            too_few = slots.error if slots is not None else None
            if failure is not None and failure.phase == LOADING_PHASE and failure.error == ModuleNotFoundError.__name__:
                diagnosed: SparkdlCommError | None = missing_module_error(failure.message)
            else:
                diagnosed = failure.to_exception() if failure is not None else too_few or _diagnose(str(error))
            if (
                diagnosed is None
                and not isinstance(error, SparkdlCommError)
                and spark is not None
                and is_stopped(spark)
            ):
                # pyspark finds no SparkContext: that says nothing
                said = "" if isinstance(error, AttributeError) else f" Spark says: {error}"
                diagnosed = GangError(f"the run's Spark application has ended.{said}")
            received = listener.received_tensors if is_model else None
            with nullcontext() if received is None else keep_tensors(received):
                if diagnosed is None:
                    raise
                # Not the cause if a rank reported: Spark's text repeats the report under a page of Java stacks.
                raise diagnosed from (error if failure is None else None)
        finally:
            listener.close()
    return tensors, reports


def _show(bar: ProgressBar, message: dict[str, Any]) -> None:
    """Show a message of rank 0: log a warning, or update the progress bar."""
    if "warning" in message:
        _log.warning("%s", message["warning"])
    else:
        bar(message)


def _diagnose(text: str) -> SparkdlCommError | None:
    """Return the error of a run in which no rank could report, from Spark's message. None if the message is about
    something else.

    Possible reasons: a rank's process was killed, or it failed outside of this package. There was no Python for it.
    There were too few slots. The job was cancelled.
    """
    if _TOO_FEW_SLOTS in text:
        return SlotsError(
            "there were too few slots for all ranks to run at once: an executor was lost, or another application has it,"
            " or num_workers is more than the cluster's slots."
            f" Spark says: {text[text.index(_TOO_FEW_SLOTS) :].splitlines()[0]}"
        )
    cancelled = _CANCELLED.search(text)
    if cancelled is not None:
        return GangError(f"the run's Spark job was cancelled. Spark says: {cancelled[0]}")
    missing_python = _NO_PYTHON.search(text)
    if missing_python is not None:
        return ConfError(f"executors cannot start their Python, {missing_python['python']}: {_SET_PYTHON}")
    if _OTHER_PYTHON in text:
        mismatch = text[text.index(_OTHER_PYTHON) + len(_OTHER_PYTHON) :].partition(", PySpark")[0].strip()
        return ConfError(f"{mismatch}: {_SET_PYTHON}")
    task = _TASK_FAILED.search(text)
    if task is None:
        return None
    rank, reason = int(task["rank"]), task["reason"]
    python = _PYTHON_RAISED.search(reason)
    if python is not None and python["error"] == "ModuleNotFoundError":
        return missing_module_error(python["message"])
    if python is not None:
        return RankFailedError(
            rank=rank,
            step=None,
            phase="its Python worker",
            error=python["error"],
            error_message=(python["message"] or "").strip(),
            remote_traceback=python["traceback"],
        )
    cause = (
        "its executor was killed for using too much memory. PyTorch's memory is outside of the JVM's heap: increase"
        " spark.executor.memoryOverhead"
        if was_killed(reason)
        else "its Python worker or its executor died (killed, or out of memory?)"
    )
    return RankLostError(
        f"rank {rank} was lost: {cause}. Spark says: {reason}",
        rank=rank,
    )


def was_killed(text: str) -> bool:
    """Return whether Spark's ``text`` about a lost executor says that it was killed for its memory."""
    return _KILLED.search(text) is not None
