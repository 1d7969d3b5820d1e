"""Processes that are ranks, one recipe after another, as an executor's Python workers are: what runs in them is the product's.

They live as long as the crew does; if one of them dies or does not end in time, all are replaced.
"""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import pyarrow as pa
import torch
from pyspark import cloudpickle

from sparkdl_comm.job.local import LocalContext
from sparkdl_comm.job.rank import Rank
from sparkdl_comm.job.task import RankTask
from sparkdl_comm.train.spec import TrainSpec
from tests.forkserver import context

from .stateful import RANK

#: Seconds that processes may take to start, on a busy machine.
START = 120.0


class HungError(Exception):
    """The ranks did not end in time."""


class DiedError(Exception):
    """A rank's process ended without a word."""


def work(rank: int, pipe: Connection, local_dirs: str) -> None:
    """One process: trains what it is sent, until the pipe closes."""
    os.environ["SPARK_LOCAL_DIRS"] = local_dirs  # by which a rank finds its executor's plugin
    os.environ[RANK] = str(rank)
    torch.set_num_threads(1)
    gc.freeze()  # what is imported, so that collecting what a recipe leaves is quick
    pipe.send("here")
    while True:
        try:
            sent: bytes = pipe.recv_bytes()
        except (EOFError, ConnectionError):  # nobody is there any more
            return
        spec: TrainSpec
        spec, batches = cloudpickle.loads(sent)
        task = RankTask(spec, LocalContext(rank, spec.world))
        try:
            report = Rank(spec, task).run(iter(batches))
        except RuntimeError as failed:
            answer = ("error", str(failed))
        except BaseException as exc:  # noqa: BLE001 - as Spark would tell it
            answer = ("error", repr(exc))
        else:
            answer = ("report", report.to_json())
        gc.collect()
        pipe.send(answer)


class Crew:
    """``local_dirs``: of each rank's executor; "" without any."""

    def __init__(self, local_dirs: Sequence[str]) -> None:
        self._local_dirs = list(local_dirs)
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, spec: TrainSpec, batches: Sequence[list[pa.RecordBatch]], seconds: float) -> list[str]:
        """The ranks' reports. Raises RuntimeError with the failures inside, as Spark would; HungError, DiedError."""
        if not self._processes:  # after a death
            self._start()
        deadline = time.monotonic() + seconds
        pipes = self._pipes[: spec.world]
        for pipe, rows in zip(pipes, batches, strict=True):
            pipe.send_bytes(cloudpickle.dumps((spec, rows)))
        ended: dict[Connection, tuple[str, str]] = {}
        while len(ended) < len(pipes):
            ready = wait([pipe for pipe in pipes if pipe not in ended], max(0.0, deadline - time.monotonic()))
            if not ready:
                running = [rank for rank, pipe in enumerate(pipes) if pipe not in ended]
                told = [text for kind, text in ended.values() if kind == "error"]
                self.close()
                raise HungError(
                    f"ranks {running} of {spec.world} did not end in {seconds:g} s; the others: {told}"[:4000]
                )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    ended[pipe] = pipe.recv()
                except (EOFError, ConnectionError, pickle.UnpicklingError):
                    rank = pipes.index(pipe)
                    self._processes[rank].join(1.0)
                    code = self._processes[rank].exitcode
                    self.close()
                    raise DiedError(f"the process of rank {rank} ended with {code}") from None
        errors = [text for kind, text in ended.values() if kind == "error"]
        if errors:
            raise RuntimeError("\n".join(errors))
        return [ended[pipe][1] for pipe in pipes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10.0)
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def __enter__(self) -> Crew:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        for rank, local_dirs in enumerate(self._local_dirs):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(rank, theirs, local_dirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(START), f"the process of rank {rank} did not start"
            pipe.recv()
