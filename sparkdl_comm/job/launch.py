"""The driver's side of one run: starts the ranks, and gets progress and the trained tensors from them."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from pyspark.sql import DataFrame

from sparkdl_comm.conf import CommConf
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
from sparkdl_comm.job.broadcasts import sent
from sparkdl_comm.job.description import described
from sparkdl_comm.job.driver_listener import DriverListener, OnProgress
from sparkdl_comm.job.import_check import ImportCheck
from sparkdl_comm.job.interrupt import JobTag, in_thread
from sparkdl_comm.job.memory import was_killed
from sparkdl_comm.job.module_broadcast import model_for_tasks
from sparkdl_comm.job.rank import make_rank_fn
from sparkdl_comm.job.restart import with_restarts
from sparkdl_comm.job.row_sets import with_row_sets
from sparkdl_comm.job.session import driver_bind
from sparkdl_comm.job.shipped import missing_module
from sparkdl_comm.job.slot_watch import SlotWatch
from sparkdl_comm.job.summary import RankReport
from sparkdl_comm.job.task import LOADING, RANK_SCHEMA, ROWS_GONE, RankFn, RowsGoneError
from sparkdl_comm.report.progress import ProgressBar
from sparkdl_comm.space.module_state import state_dict_of
from sparkdl_comm.train.spec import TrainSpec

_log = logging.getLogger(__name__)

#: What Spark's scheduler says of a barrier stage in which a task ended without a report of ours.
_TASK_FAILED = re.compile(
    r"barrier task \w+\(\d+, (?P<rank>\d+)\) finished unsuccessfully\.\s*(?P<reason>.*?)\s*(?:\n\tat |\Z)", re.DOTALL
)
#: How a message ends that Spark Connect 3.5 has cut to 2048 characters.
_CUT = "..."
#: How long rank 0 may then take to say why the gang failed.
_SETTLE_SECONDS = 3.0
_TOO_FEW_SLOTS = "[SPARK-24819]"
_CANCELLED = re.compile(r"Job \d+ cancelled\b[^\n]*")
#: What Spark says where it cannot start the Python of executors, or where that is not the driver's version.
_NO_PYTHON = re.compile(r"Cannot run program \"(?P<python>[^\"]*)\"")
_OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH]"
_SET_PYTHON = (
    "have them use one like the driver's, by the environment variable PYSPARK_PYTHON, set before the session starts, or"
    " spark-submit --conf spark.pyspark.python=..."
)
_PYTHON_RAISED = re.compile(
    r"(?P<traceback>Traceback \(most recent call last\):\n.*?^(?P<error>\w[\w.]*)(?:: (?P<message>.*))?)\Z",
    re.DOTALL | re.MULTILINE,
)


def launch(
    rows: DataFrame, spec: TrainSpec, host: str, watch: OnProgress
) -> tuple[dict[str, torch.Tensor], list[RankReport], int]:
    """Train on ``rows`` with ``spec.world`` ranks at once; again, if one of them is lost.

    :param rows: columns as ``spec.rows`` says; see :class:`sparkdl_comm.data.fields.RowFormat`.
    :param spec: everything but ``driver_address``, which is filled in here.
    :param host: the name or address by which executors reach this process.
    :param watch: gets rank 0's messages about progress, as the bar does.
    :return: the trained tensors by name, on the CPU; one report per rank; how many times the ranks were started again.
    :raises SparkdlCommError: what stopped the first rank that failed. Spark's own exception is its cause where no rank
        reported one, else its context.
    """
    # By what is in a row, not by how Spark splits its input: that depends on the executors that are there, and other rows per
    # rank are other weights. Spark does not merge these partitions, as it may those of other shuffles.
    partitions = rows.repartition(spec.world, "id")
    spec = dataclasses.replace(spec, model=model_for_tasks(rows.sparkSession, spec.model))

    def gang(partitions: DataFrame, spec: TrainSpec) -> tuple[dict[str, torch.Tensor], list[RankReport]]:
        tensors, reports = run_gang(
            lambda listener: run_tasks(
                partitions,
                make_rank_fn(dataclasses.replace(spec, driver_address=listener.address)),
                listener.check,
                _description(spec),
            ),
            slots=SlotWatch(rows.sparkSession, spec.world, spec.conf.slot_timeout, spec.conf.turn_timeout),
            world=spec.world,
            conf=spec.conf,
            secret=spec.secret,
            attempt_id=spec.attempt_id,
            host=host,
            bind=driver_bind(rows.sparkSession),
            watch=watch,
            as_state_dict=state_dict_of,
        )
        return tensors, [RankReport.from_json(report) for report in reports]

    run = with_row_sets(gang, rows, partitions)
    (tensors, reports), restarts = with_restarts(run, spec, rows.sparkSession)
    return tensors, reports, restarts


def _description(spec: TrainSpec) -> str:
    """Return what the Spark UI shows for a gang's job."""
    epochs = "1 epoch" if spec.epochs == 1 else f"{spec.epochs} epochs"
    resumed = " from the last checkpoint" if spec.checkpoints is not None and spec.checkpoints.resume else ""
    return f"sparkdl_comm fit: {spec.strategy}, {epochs} on {spec.world} ranks{resumed}"


def run_tasks(partitions: DataFrame, rank_fn: RankFn, check: Callable[[], None], description: str) -> list[str]:
    """Run one barrier task for each partition of ``partitions``, all at once, and wait for all of them: their reports.
    ``check`` is called every second; if it raises, the tasks are cancelled. The Spark UI shows ``description``.

    :raises RowsGoneError: a rank's was that; its message is the first that says anything.
    :raises Exception: Spark's, when a task failed; its text has what the rank reported.
    """
    spark = partitions.sparkSession
    with sent(spark, rank_fn) as function, JobTag(spark) as tag, described(spark, description):
        tasks = partitions.mapInArrow(ImportCheck(function, rank=True), RANK_SCHEMA, barrier=True)
        try:
            done = in_thread(spark, tasks.collect, check)
        except RankLostError:
            tag.cancel()
            raise
    reports = [row["report"] for row in done]
    gone = [report.removeprefix(ROWS_GONE) for report in reports if report.startswith(ROWS_GONE)]
    if gone:
        raise RowsGoneError(next(filter(None, gone), ""))
    return reports


def run_gang(
    start: Callable[[DriverListener], list[str]],
    *,
    slots: SlotWatch | None,
    world: int,
    conf: CommConf,
    secret: bytes,
    attempt_id: str,
    host: str,
    bind: str | None = None,
    watch: OnProgress | None = None,
    as_state_dict: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Run a gang, and get what it sends.

    :param start: runs the ranks, given the driver's listener, and returns their reports.
    :param host: by which executors reach this process; ``bind``: where Spark's driver listens, if that is said apart.
    :param slots: watches Spark's jobs; None: ``start`` does not run any.
    :param as_state_dict: makes the ``state_dict`` of an error of the tensors that had come; None: they are no model's.
    :return: the tensors that rank 0 sent, and every rank's report.
    :raises SparkdlCommError: as :func:`launch`.
    """
    port = conf.driver_port
    with ProgressBar(conf.progress) as bar:
        ports = range(port, port + 1) if port else None

        def told(message: dict[str, Any]) -> None:
            if slots is not None:
                slots.satisfied()
            _show(bar, message)
            if watch is not None and "warning" not in message:
                watch(message)

        listener = DriverListener(
            host,
            ports,
            secret,
            told,
            on_log=bar.log,
            attempt=attempt_id,
            world=world,
            timeout=conf.timeout,
            bind=bind,
        )
        try:
            with slots or nullcontext():
                reports = start(listener)
            if not reports:  # Spark runs no task at all for a relation that it knows to be empty
                raise InputError("nothing to train on: the DataFrame has no rows")
            # rank 0 sent them before it reported
            tensors = listener.tensors(time.monotonic() + conf.timeout)
        except Exception as error:
            failure = Failure.find(str(error))
            if failure is None and str(error).endswith(_CUT):
                failure = listener.failure(time.monotonic() + _SETTLE_SECONDS)
            too_few = slots.error if slots is not None else None
            if failure is not None and failure.phase == LOADING and failure.error == ModuleNotFoundError.__name__:
                typed: SparkdlCommError | None = missing_module(failure.message)
            else:
                typed = failure.to_exception() if failure is not None else too_few or _unreported(str(error))
            if typed is None:
                raise
            if as_state_dict is not None and listener.received is not None:
                typed.state_dict = as_state_dict(listener.received)
            # Spark's text has nothing but what the rank reported, under a page of Java stacks.
            raise typed from (error if failure is None else None)
        finally:
            listener.close()
    return tensors, reports


def _show(bar: ProgressBar, message: dict[str, Any]) -> None:
    """What rank 0 tells while it runs: a warning, or its progress."""
    if "warning" in message:
        _log.warning("%s", message["warning"])
    else:
        bar(message)


def _unreported(text: str) -> SparkdlCommError | None:
    """What stopped a rank that could not say so itself, from Spark's words: its process was killed, or it failed before
    or outside of our code; or it never was; or there were too few slots; or somebody cancelled its job. None if they are about
    something else."""
    if _TOO_FEW_SLOTS in text:
        return SlotsError(
            "there were too few slots for all ranks to run at once: an executor was lost, or taken by another application,"
            " or num_workers is more than there ever were."
            f" Spark says: {text[text.index(_TOO_FEW_SLOTS) :].splitlines()[0]}"
        )
    cancelled = _CANCELLED.search(text)
    if cancelled is not None:
        return GangError(f"the run's Spark job was cancelled. Spark says: {cancelled[0]}")
    absent = _NO_PYTHON.search(text)
    if absent is not None:
        return ConfError(f"executors cannot start their Python, {absent['python']}: {_SET_PYTHON}")
    if _OTHER_PYTHON in text:
        told = text[text.index(_OTHER_PYTHON) + len(_OTHER_PYTHON) :].partition(", PySpark")[0].strip()
        return ConfError(f"{told}: {_SET_PYTHON}")
    task = _TASK_FAILED.search(text)
    if task is None:
        return None
    rank, reason = int(task["rank"]), task["reason"]
    python = _PYTHON_RAISED.search(reason)
    if python is not None and python["error"] == "ModuleNotFoundError":
        return missing_module(python["message"])
    if python is not None:
        return RankFailedError(
            rank=rank,
            step=None,
            phase="its Python worker",
            error=python["error"],
            error_message=(python["message"] or "").strip(),
            remote_traceback=python["traceback"],
        )
    how = (
        "its executor was killed for its memory, of which PyTorch's is outside of the JVM's heap: set"
        " spark.executor.memoryOverhead to more"
        if was_killed(reason)
        else "its Python worker or its executor died (killed, or out of memory?)"
    )
    return RankLostError(
        f"rank {rank} was lost: {how}. Spark says: {reason}",
        rank=rank,
    )
