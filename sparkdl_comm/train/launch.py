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
from ..errors import GangError, InputError, RankFailedError, RankLostError
from ..report.progress import ProgressBar
from .channel import DriverListener
from .failure import Failure
from .handshake import Address
from .rank import make_rank_fn
from .report import RankReport
from .spec import TrainSpec
from .task import RANK_SCHEMA, RankFn

_log = logging.getLogger(__name__)

#: What Spark's scheduler says of a barrier stage in which a task ended without a report of ours.
_TASK_FAILED = re.compile(
    r"barrier task \w+\(\d+, (?P<rank>\d+)\) finished unsuccessfully\.\s*(?P<reason>.*?)\s*(?:\n\tat |\Z)", re.DOTALL
)
_PYTHON_RAISED = re.compile(
    r"(?P<traceback>Traceback \(most recent call last\):\n.*?^(?P<error>\w[\w.]*)(?:: (?P<message>.*))?)\Z",
    re.DOTALL | re.MULTILINE,
)


def launch(rows: DataFrame, spec: TrainSpec, host: str) -> tuple[dict[str, torch.Tensor], list[RankReport]]:
    """Train on ``rows`` with ``spec.world`` ranks at once.

    :param rows: columns as ``spec.rows`` says; see :class:`sparkdl_comm.data.fields.RowFormat`.
    :param spec: everything but ``driver_address``, which is filled in here.
    :param host: the name or address by which executors reach this process.
    :return: the trained tensors by name, on the CPU, and one report per rank.
    :raises SparkdlCommError: what stopped the first rank that failed; Spark's own exception is its cause.
    """
    tensors, reports = run_gang(
        rows.repartition(spec.world),
        lambda address: make_rank_fn(dataclasses.replace(spec, driver_address=address)),
        conf=spec.conf,
        secret=spec.secret,
        epoch_id=spec.epoch_id,
        host=host,
    )
    return tensors, [RankReport.from_json(report) for report in reports]


def run_gang(
    partitions: DataFrame,
    make_fn: Callable[[Address], RankFn],
    *,
    conf: CommConf,
    secret: bytes,
    epoch_id: str,
    host: str,
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Run one barrier task for each partition of ``partitions``, all at once, and wait for all of them.

    :param make_fn: makes the tasks' function from the address of the driver's listener; see :data:`RankFn`.
    :return: the tensors that rank 0 sent, and every rank's report.
    :raises SparkdlCommError: as :func:`launch`.
    """
    port = conf.driver_port
    with ProgressBar(conf.progress) as bar:
        ports = range(port, port + 1) if port else None
        listener = DriverListener(host, ports, secret, lambda told: _show(bar, told), epoch=epoch_id)
        try:
            reports = partitions.mapInArrow(make_fn(listener.address), RANK_SCHEMA, barrier=True).collect()  # type: ignore[arg-type]
            if not reports:  # Spark runs no task at all for a relation that it knows to be empty
                raise InputError("nothing to train on: the DataFrame has no rows")
            # rank 0 sent them before it reported
            tensors = listener.tensors(time.monotonic() + conf.timeout)
        except Exception as error:
            failure = Failure.find(str(error))
            typed = failure.to_exception() if failure is not None else _unreported(str(error))
            if typed is None:
                raise
            raise typed from error
        finally:
            listener.close()
    return tensors, [row["report"] for row in reports]


def _show(bar: ProgressBar, told: dict[str, Any]) -> None:
    """What rank 0 tells while it runs: a warning, or its progress."""
    if "warning" in told:
        _log.warning("%s", told["warning"])
    else:
        bar(told)


def _unreported(text: str) -> GangError | None:
    """What stopped a rank that could not say so itself, from Spark's words: its process was killed, or it failed before
    or outside of our code. None if they are not about a rank."""
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
