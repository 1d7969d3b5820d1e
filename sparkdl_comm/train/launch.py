"""The driver's side of one run: starts the ranks, and gets progress and the trained tensors from them."""

from __future__ import annotations

import dataclasses
import re
import time
from types import TracebackType
from typing import Any

import torch
from pyspark.sql import DataFrame

from ..errors import GangError, InputError, RankFailedError, RankLostError
from .channel import DriverListener
from .failure import Failure
from .rank import make_rank_fn
from .report import RankReport
from .spec import TrainSpec

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

    :param rows: columns ``features``, ``label`` and ``id``; see :class:`sparkdl_comm.data.cache.RowCache`.
    :param spec: everything but ``driver_address``, which is filled in here.
    :param host: the name or address by which executors reach this process.
    :return: the trained tensors by name, on the CPU, and one report per rank.
    :raises SparkdlCommError: what stopped the first rank that failed; Spark's own exception is its cause.
    """
    port = spec.conf.driver_port
    with ProgressBar(spec.conf.progress) as bar:
        ports = range(port, port + 1) if port else None
        listener = DriverListener(host, ports, spec.secret, bar, epoch=spec.epoch_id)
        try:
            spec = dataclasses.replace(spec, driver_address=listener.address)
            reports = (
                rows.repartition(spec.world)
                .mapInArrow(make_rank_fn(spec), "rank int, report string", barrier=True)  # type: ignore[arg-type]
                .collect()
            )
            if not reports:  # Spark runs no task at all for a relation that it knows to be empty
                raise InputError("nothing to train on: the DataFrame has no rows")
            # rank 0 sent them before it reported
            tensors = listener.tensors(time.monotonic() + spec.conf.timeout)
        except Exception as error:
            failure = Failure.find(str(error))
            typed = failure.to_exception() if failure is not None else _unreported(str(error))
            if typed is None:
                raise
            raise typed from error
        finally:
            listener.close()
    return tensors, [RankReport.from_json(row["report"]) for row in reports]


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


class ProgressBar:
    """Shows the progress that rank 0 sends, in a terminal or a notebook. Call it with a progress dict:
    ``epoch`` (from 0), ``epochs``, ``step`` (of the epoch, from 1), ``steps``, ``loss`` (or None),
    ``samples_per_second``."""

    def __init__(self, visible: bool) -> None:
        self._visible = visible
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: dict[str, Any]) -> None:
        if not self._visible:
            return
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=progress["epochs"] * progress["steps"], unit="step", dynamic_ncols=True)
        shown = {"samples/s": f"{progress['samples_per_second']:.0f}"}
        if progress.get("loss") is not None:
            shown["loss"] = f"{progress['loss']:.4g}"
        self._bar.set_description(f"epoch {progress['epoch'] + 1}/{progress['epochs']}", refresh=False)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(progress["epoch"] * progress["steps"] + progress["step"] - self._bar.n)
