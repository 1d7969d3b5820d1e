"""The driver's side of one run: starts the ranks, and gets progress and the trained tensors from them."""

from __future__ import annotations

import dataclasses
import time
from types import TracebackType
from typing import Any

import torch
from pyspark.sql import DataFrame

from ..errors import InputError
from .channel import DriverListener
from .failure import Failure
from .rank import make_rank_fn
from .report import RankReport
from .spec import TrainSpec


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
            if failure is None:
                raise
            raise failure.to_exception() from error
        finally:
            listener.close()
    return tensors, [RankReport.from_json(row["report"]) for row in reports]


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
