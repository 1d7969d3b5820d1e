"""A rank's rows, from Spark or from a named cache on its executor's disk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from sparkdl_comm.data import named_cache
from sparkdl_comm.data.arrow_file import MappedFile, as_tensor
from sparkdl_comm.data.cache import Column, RankRows, RowCache, RowReader
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.data.named_cache import NamedCache
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

        When they are read from a cache, the task takes the rank whose rows it finds, or no rank. Raises what
        :class:`RowReader` does.

        :raises ConfError: the cache of this name has other rows.
        """
        begin = time.perf_counter()
        self._format = rows
        self._cache = spec.cache
        self._task = task
        self._limit_bytes = spec.conf.data.memory_limit
        self._resident_bytes = 0
        self._unkept = ""
        self._disk: LocalDisk | None = None
        if self._cache is not None:
            self._disk = LocalDisk(Path(spec.conf.data.cache_dir).expanduser(), spec.conf.data.cache_limit)
        elif spec.conf.data.cache == "disk":
            self._disk = LocalDisk.of_executor(spec.conf.data.cache_limit)
        if self._cache is not None and self._cache.is_read and self._disk is not None:
            for _ in batches:  # otherwise Spark ends this Python worker, and the next fit has to start another
                pass
            self.reading = self._load(self._disk, self._cache)
        else:
            if self._cache is not None and self._disk is not None:
                with suppress(OSError):
                    self._cache.check(self._disk, rows)
            self.reading = RowReader(batches, rows, self._disk)
        self.account = self.reading.account
        self._seconds = time.perf_counter() - begin

    def _load(self, disk: LocalDisk, cache: NamedCache) -> RowReader:
        reading, error_text = None, ""
        try:
            cache.check(disk, self._format)
            rank = named_cache.choose_part(disk, cache, self._task.partition, self._task.local_partitions())
            reading = None if rank is None else named_cache.load(disk, cache, rank, self._format)
        except OSError as error:
            error_text = f"task {self._task.partition}: {error}"
        if reading is None:
            self._task.choose_rank(None, read_error=error_text)
            return RowReader((), self._format)
        self._task.choose_rank(rank, reading.set_id)
        return reading

    def rows(self, accounts: Sequence[dict[str, Any]]) -> RankRows:
        """Return the rows to use. They are valid until closed. Rows on the disk are in part kept in memory too.

        Rows that Spark has delivered become a part of the named cache, if there is one.

        :param accounts: the accounts of all ranks.

        Raises what :meth:`RowReader.rows` does.

        :raises ConfError: another fit has meanwhile used the cache's name for other rows.
        """
        found = keep_resident(self.reading.rows(accounts), self._limit_bytes)
        self._resident_bytes = sum(
            resident_bytes(part) for part in (found.training, found.validation) if part is not None
        )
        if self._cache is not None and not self._cache.is_read and self._disk is not None:
            self._unkept = named_cache.keep(
                self.reading, self._cache, self._disk, self._format, self._task.rank, accounts
            )
        return found

    def report(self) -> dict[str, Any]:
        """Return for the summary: ``cache`` (memory or disk), ``bytes`` (on the disk), ``held`` (bytes of these that are
        in memory too), ``seconds`` (until the rows were read). ``reused``: whether the rows came from a named cache.
        ``unkept``: why a named cache did not take the rows, or empty.
        """
        return {
            "cache": "memory" if self.reading.folder is None else "disk",
            "bytes": self.reading.size_bytes,
            "held": self._resident_bytes,
            "seconds": self._seconds,
            "reused": self._cache is not None and self._cache.is_read,
            "unkept": self._unkept,
        }


def describe_problem(accounts: Sequence[dict[str, Any]]) -> str | None:
    """Return a warning about ranks that could not keep their rows on the disk, or None.

    :param accounts: the accounts of all ranks, in order.
    """
    ranks = [rank for rank, account in enumerate(accounts) if account["problem"] is not None]
    if not ranks:
        return None
    return f"{format_ranks(ranks)} of {len(accounts)}: {accounts[ranks[0]]['problem']}"
