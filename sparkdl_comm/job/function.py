"""Barrier tasks of a CommDistributor: each runs the user's function in a gang with a process group."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import pyarrow as pa

from sparkdl_comm.collectives.communicator import Communicator, install
from sparkdl_comm.conf import CommConf
from sparkdl_comm.data.dataset import PartitionDataset
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.handshake import Address
from sparkdl_comm.gang.process_group import process_group
from sparkdl_comm.gang.tensors import pack_value
from sparkdl_comm.job.task import LOADING_PHASE, RankFn, RankTask

#: Report of a rank whose function never communicated with other ranks.
ALONE = "alone"


@dataclass(frozen=True)
class FunctionSpec:
    """Parameters of one run of a user's function.

    ``call``: the pickled function with its arguments. ``has_rows``: whether the function gets the rank's rows, a
    PartitionDataset, as its first argument. ``is_local``: whether ranks are processes of one machine. For the other fields
    see TrainSpec.
    """

    call: bytes = field(repr=False)
    has_rows: bool
    device: str
    conf: CommConf
    world: int
    attempt_id: str
    secret: bytes = field(repr=False)
    driver_address: Address
    is_local: bool = False


def make_function_fn(spec: FunctionSpec) -> RankFn:
    """Return the function for ``mapInArrow(…, RANK_SCHEMA, barrier=True)``, one task per rank."""

    def run_rank(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        task = RankTask(spec, BarrierTaskContext.get())
        yield task.report(run_function(spec, task, batches))

    return run_rank


def run_function(spec: FunctionSpec, task: RankTask, batches: Iterator[pa.RecordBatch]) -> str:
    """Run the function, and send rank 0's result to the driver.

    A failure is announced to the other ranks, and raised with the *first* failure of the gang inside.

    :return: the rank's report: :data:`ALONE` if there are other ranks and it never communicated with them, otherwise
        "".
    """
    phase = "set-up"
    try:
        with ExitStack() as stack:
            try:
                arguments = _arguments(spec, batches, stack)
                device = task.device()
                gang = task.join_gang({})
                driver = task.connect_driver(stack)
                has_used_torch = stack.enter_context(process_group(gang, device, spec.conf.timeout, spec.is_local))
                communicator = stack.enter_context(install(Communicator(gang, device, spec.conf)))
                phase = LOADING_PHASE
                # As Spark unpickles its own functions. After the group is made, because the pickle may import a module
                # that keeps a reference to init_process_group.
                call = cloudpickle.loads(spec.call)
                phase = "train_fn"
                result = call(*arguments)
                phase = "result"
                if driver is not None:
                    driver.send_tensors(pack_value(result))
                is_alone = gang.world > 1 and not communicator.has_communicated and not has_used_torch()
                communicator.close_awaited()
                task.wait_for_others(spec.conf.timeout)
                return ALONE if is_alone else ""
            except (Exception, SystemExit) as exc:
                raise task.announce_failure(Failure.of(exc, task.rank, None, phase)) from exc
    finally:
        task.close()


def _arguments(spec: FunctionSpec, batches: Iterator[pa.RecordBatch], stack: ExitStack) -> list[PartitionDataset]:
    if spec.has_rows:
        from pyspark import SparkFiles

        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=SparkFiles.getRootDirectory()))
        return [PartitionDataset(batches, Path(folder))]
    for _ in batches:  # otherwise Spark ends the Python worker
        pass
    return []


@dataclass(frozen=True)
class ScriptCall:
    """Call that runs the Python file ``path``, present on every executor, like ``python path *arguments``."""

    path: str
    arguments: tuple[str, ...]

    def __call__(self) -> None:
        argv, path = sys.argv, list(sys.path)
        sys.argv = [self.path, *self.arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(self.path)))
        try:
            runpy.run_path(self.path, run_name="__main__")
        except SystemExit as exc:
            if exc.code:
                raise
        finally:
            sys.argv = argv
            sys.path[:] = path
