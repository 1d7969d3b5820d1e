"""A rank's rows, from Spark or from its executor's disk, where an earlier fit left them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from sparkdl_comm.data import kept_rows
from sparkdl_comm.data.cache import RankRows, RowReader
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.data.resident_rows import keep_resident, resident_bytes
from sparkdl_comm.gang.members import format_ranks
from sparkdl_comm.job.task import RankTask
from sparkdl_comm.train.spec import TrainSpec


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
        self._limit_bytes = spec.conf.data_memory_limit
        self._resident_bytes = 0
        disk = LocalDisk.of_executor(spec.conf.data_cache_limit) if spec.conf.data_cache == "disk" else None
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
