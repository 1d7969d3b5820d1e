"""The driver's side of one run: starts the ranks, and gets progress and the trained tensors from them."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import torch
from pyspark.sql import DataFrame

from ..conf import CommConf
from ..errors import InputError, RankFailedError, RankLostError, SlotsError, SparkdlCommError
from ..report.progress import ProgressBar
from .channel import DriverListener
from .failure import Failure
from .handshake import Address
from .rank import make_rank_fn
from .report import RankReport
from .restart import with_restarts
from .slots import SlotWatch
from .spec import TrainSpec
from .task import RANK_SCHEMA, RankFn

_log = logging.getLogger(__name__)

#: What Spark's scheduler says of a barrier stage in which a task ended without a report of ours.
_TASK_FAILED = re.compile(
    r"barrier task \w+\(\d+, (?P<rank>\d+)\) finished unsuccessfully\.\s*(?P<reason>.*?)\s*(?:\n\tat |\Z)", re.DOTALL
)
_TOO_FEW_SLOTS = "[SPARK-24819]"
_PYTHON_RAISED = re.compile(
    r"(?P<traceback>Traceback \(most recent call last\):\n.*?^(?P<error>\w[\w.]*)(?:: (?P<message>.*))?)\Z",
    re.DOTALL | re.MULTILINE,
)


def launch(rows: DataFrame, spec: TrainSpec, host: str) -> tuple[dict[str, torch.Tensor], list[RankReport], int]:
    """Train on ``rows`` with ``spec.world`` ranks at once; again, if one of them is lost.

    :param rows: columns as ``spec.rows`` says; see :class:`sparkdl_comm.data.fields.RowFormat`.
    :param spec: everything but ``driver_address``, which is filled in here.
    :param host: the name or address by which executors reach this process.
    :return: the trained tensors by name, on the CPU; one report per rank; how many times the ranks were started again.
    :raises SparkdlCommError: what stopped the first rank that failed; Spark's own exception is its cause.
    """
    partitions = rows.repartition(spec.world)

    def run(spec: TrainSpec) -> tuple[dict[str, torch.Tensor], list[str]]:
        return run_gang(
            partitions,
            lambda address: make_rank_fn(dataclasses.replace(spec, driver_address=address)),
            world=spec.world,
            conf=spec.conf,
            secret=spec.secret,
            epoch_id=spec.epoch_id,
            host=host,
        )

    (tensors, reports), restarts = with_restarts(run, spec, rows.sparkSession)
    return tensors, [RankReport.from_json(report) for report in reports], restarts


def run_gang(
    partitions: DataFrame,
    make_fn: Callable[[Address], RankFn],
    *,
    world: int,
    conf: CommConf,
    secret: bytes,
    epoch_id: str,
    host: str,
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Run one barrier task for each of the ``world`` partitions, all at once, and wait for all of them.

    :param make_fn: makes the tasks' function from the address of the driver's listener; see :data:`RankFn`.
    :return: the tensors that rank 0 sent, and every rank's report.
    :raises SparkdlCommError: as :func:`launch`.
    """
    port = conf.driver_port
    with ProgressBar(conf.progress) as bar:
        ports = range(port, port + 1) if port else None
        watch = SlotWatch(partitions.sparkSession, world, conf.slot_timeout)

        def told(message: dict[str, Any]) -> None:
            watch.satisfied()
            _show(bar, message)

        listener = DriverListener(host, ports, secret, told, epoch=epoch_id)
        try:
            with watch:
                reports = partitions.mapInArrow(make_fn(listener.address), RANK_SCHEMA, barrier=True).collect()  # type: ignore[arg-type]
            if not reports:  # Spark runs no task at all for a relation that it knows to be empty
                raise InputError("nothing to train on: the DataFrame has no rows")
            # rank 0 sent them before it reported
            tensors = listener.tensors(time.monotonic() + conf.timeout)
        except Exception as error:
            failure = Failure.find(str(error))
            typed = failure.to_exception() if failure is not None else watch.error or _unreported(str(error))
            if typed is None:
                raise
            raise typed from error
        finally:
            listener.close()
    return tensors, [row["report"] for row in reports]


def _show(bar: ProgressBar, message: dict[str, Any]) -> None:
    """What rank 0 tells while it runs: a warning, or its progress."""
    if "warning" in message:
        _log.warning("%s", message["warning"])
    else:
        bar(message)


def _unreported(text: str) -> SparkdlCommError | None:
    """What stopped a rank that could not say so itself, from Spark's words: its process was killed, or it failed before
    or outside of our code; or there were too few slots. None if they are about something else."""
    if _TOO_FEW_SLOTS in text:
        return SlotsError(
            "there were too few slots for all ranks to run at once: an executor was lost, or taken by another application."
            f" Spark says: {text[text.index(_TOO_FEW_SLOTS) :].splitlines()[0]}"
        )
    task = _TASK_FAILED.search(text)
    if task is None:
        return None
    rank, reason = int(task["rank"]), task["reason"]
    python = _PYTHON_RAISED.search(reason)
    if python is not None:
        return RankFailedError(
            rank=rank,
            step=None,
            phase="its Python worker",
            error=python["error"],
            error_message=(python["message"] or "").strip(),
            remote_traceback=python["traceback"],
        )
    return RankLostError(
        f"rank {rank} was lost: its Python worker or its executor died (killed, or out of memory?). Spark says: {reason}",
        rank=rank,
    )
