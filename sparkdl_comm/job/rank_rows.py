"""A rank's rows, from Spark or from its executor's disk, where an earlier fit left them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from sparkdl_comm.data import kept_rows
from sparkdl_comm.data.arrow_file import MappedFile, as_tensor
from sparkdl_comm.data.cache import Column, RankRows, RowCache, RowReader
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.gang.members import format_ranks
from sparkdl_comm.job.task import RankTask
from sparkdl_comm.train.spec import TrainSpec


def keep_resident(rows: RankRows, limit_bytes: int) -> RankRows:
    """Return ``rows`` with a copy in memory of as many first rows as ``limit_bytes`` allows.

    Rows for training come before rows for validation. Rows that are in memory already stay as they are.
    """
    training = _with_resident(rows.training, limit_bytes)
    if rows.validation is None:
        return RankRows(training, None)
    return RankRows(training, _with_resident(rows.validation, limit_bytes - resident_bytes(training)))


def resident_bytes(rows: RowCache) -> int:
    """Return the bytes in memory of the copied rows of a file."""
    return 0 if rows.resident is None else int(_cumulative_bytes(rows.resident)[-1])


def _with_resident(rows: RowCache, limit_bytes: int) -> RowCache:
    if rows.file is None or not limit_bytes:
        return rows
    count = int(np.searchsorted(_cumulative_bytes(rows), limit_bytes, "right")) - 1
    if not count:
        return rows
    return replace(rows, resident=rows.with_columns([_copy(column, count, rows.file) for column in rows.columns]))


def _cumulative_bytes(rows: RowCache) -> NDArray[np.int64]:
    """Return the bytes of the first 0, 1, 2, … rows, int64 ``[rows + 1]``."""
    counted = np.arange(rows.rows + 1, dtype=np.int64)
    total = np.zeros_like(counted)
    for column in rows.columns:
        if isinstance(column, Ragged):
            size = column.values[:1].numel() * column.values.element_size()
            total += size * (column.offsets - column.offsets[0]).numpy() + column.offsets.element_size() * counted
        else:
            total += column[:1].numel() * column.element_size() * counted
    return total


def _copy(column: Column, count: int, file: MappedFile) -> Column:
    if not isinstance(column, Ragged):
        return as_tensor(file.copy(column[:count].numpy()))
    offsets = column.offsets[: count + 1]
    values = file.copy(column.values[offsets[0] : offsets[-1]].numpy())
    return Ragged(column.field, torch.from_numpy(values), offsets - offsets[0])


class RowLoader:
    """Rows of one rank. ``reading``: the rows, to be closed. ``account``: what other ranks learn about them, as
    JSON.
    """

    def __init__(self, spec: TrainSpec, task: RankTask, batches: Iterable[pa.RecordBatch], rows: RowFormat) -> None:
        """Read the rows.

        When they are read from the disk, the task takes the rank whose rows it finds, or no rank. Raises what
        :class:`RowReader` does.
        """
        begin = time.perf_counter()
        self._set = spec.row_set
        self._task = task
        self._limit_bytes = spec.conf.data.memory_limit
        self._resident_bytes = 0
        disk = LocalDisk.of_executor(spec.conf.data.cache_limit) if spec.conf.data.cache == "disk" else None
        if self._set is not None and self._set.is_cached and disk is not None:
            for _ in batches:  # otherwise Spark ends this Python worker, and the next fit has to start another
                pass
            self.reading = self._claim(disk, self._set.name, spec.attempt_id, rows)
        else:
            self.reading = RowReader(batches, rows, disk)
        is_sealed = self._set is not None and not self._set.is_cached and kept_rows.seal(self.reading, rows)
        self.account: dict[str, Any] = {**self.reading.account, "sealed": is_sealed}
        self._seconds = time.perf_counter() - begin

    def _claim(self, disk: LocalDisk, name: str, attempt: str, rows: RowFormat) -> RowReader:
        claimed, error_text = None, ""
        try:
            claimed = kept_rows.claim(disk, name, attempt, rows)
        except OSError as error:
            error_text = f"task {self._task.partition}: {error}"
        if claimed is None:
            self._task.choose_rank(None, error_text)
            return RowReader((), rows)
        rank, reading = claimed
        self._task.choose_rank(rank)
        return reading

    def rows(self, accounts: Sequence[dict[str, Any]]) -> RankRows:
        """Return the rows to use. They are valid until closed. Rows on the disk are in part kept in memory too.

        :param accounts: the accounts of all ranks.

        Raises what :meth:`RowReader.rows` does.
        """
        found = keep_resident(self.reading.rows(accounts), self._limit_bytes)
        self._resident_bytes = sum(
            resident_bytes(part) for part in (found.training, found.validation) if part is not None
        )
        return found

    def finish(self, accounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """End the run: leave the rows on the disk for later runs, if all ranks can.

        Returns for the summary: ``cache`` (memory or disk), ``bytes`` (on the disk), ``held`` (bytes of these that are
        in memory too), ``seconds`` (until the rows were read), ``place`` (index of the Spark partition). ``reused``:
        whether the rows were on the disk before. ``kept``: whether they are left for later runs.

        :param accounts: the accounts of all ranks.
        """
        is_reused = self._set is not None and self._set.is_cached
        is_kept = is_reused
        folder = self.reading.folder
        if self._set is not None and folder is not None and all(account["sealed"] for account in accounts):
            try:
                folder.keep(f"{self._set.name}-{self._task.rank}")
                is_kept = True
            except OSError:  # later runs read the rows from Spark again
                is_kept = False
        return {
            "cache": "memory" if folder is None else "disk",
            "bytes": self.reading.size_bytes,
            "held": self._resident_bytes,
            "seconds": self._seconds,
            "reused": is_reused,
            "kept": is_kept,
            "place": self._task.partition,
        }


def describe_problem(accounts: Sequence[dict[str, Any]]) -> str | None:
    """Return a warning about ranks that could not keep their rows on the disk, or None.

    :param accounts: the accounts of all ranks, in order.
    """
    ranks = [rank for rank, account in enumerate(accounts) if account["problem"] is not None]
    if not ranks:
        return None
    return f"{format_ranks(ranks)} of {len(accounts)}: {accounts[ranks[0]]['problem']}"
