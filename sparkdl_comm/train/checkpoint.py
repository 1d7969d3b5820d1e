"""Checkpoints of training: when they are written, what each rank writes, and how training resumes from one.

Writing:

1. After an optimizer step that :class:`Cadence` selects, the same on all ranks, each rank copies its part of the state.
   Asynchronous strategies do so at the end of an epoch, and count updates of the model as steps.
2. A thread writes the copy while training continues, and reports to rank 0 through the gang's store. If the previous
   checkpoint is still being written, training waits.
3. Rank 0's thread completes the checkpoint when all ranks have reported.

If the strategy is sharded, each rank writes its part of parameters and optimizer state. Otherwise rank 0 writes all of
them. An error in the thread ends the fit.

Resuming:

1. Rank 0 lists the checkpoints. From the newest on, every rank checks the files that it needs. The first checkpoint
   that is intact for all ranks is used.
2. Before the strategy joins, each rank loads all parameters into its module. All ranks start from these values.
3. When optimizer, scheduler and loop exist, each loads its state.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import torch

from sparkdl_comm.conf import as_text
from sparkdl_comm.errors import ConfError, DeadlineError, InputError, ModelError, PersistenceError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import pack_value, unpack_value
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import digests
from sparkdl_comm.storage.files import open_storage
from sparkdl_comm.train.checkpoint_directory import CheckpointDirectory, Tensors, check_unused, writers_of
from sparkdl_comm.train.spec import Checkpoints, TrainSpec
from sparkdl_comm.train.training_loop import TrainingLoop

#: Seconds that a failing rank waits for an unfinished write.
_ABANDON_SECONDS = 2.0
#: Settings that a resumed run must share with the checkpoint: name in the manifest -> the Param or conf key to set.
_SETTINGS = {
    "world": "num_workers",
    "strategy": "strategy",
    "loop": "spark.sparkdl.comm.collective.loop",
    "compression": "compression",
    "device": "device",
    "rows_per_step": "batchSize x accumulationSteps",
    "seed": "seed",
    "shuffle": "spark.sparkdl.comm.data.shuffle",
    "optimizer": "optimizer",
    "lr_scheduler": "lr_scheduler",
}


class Cadence:
    """Schedule of checkpoints, by steps and by time.

    A checkpoint is due at the first step after every ``steps``, and at the first step that ends ``seconds`` after the
    last checkpoint by rank 0's clock. For the time, the ranks communicate only when about half of the remaining time
    has passed, not after every step.

    :param start_step: the step that training starts or resumes from.
    """

    def __init__(
        self,
        steps: int | None,
        seconds: float | None,
        gang: Gang,
        timeout: float,
        clock: Callable[[], float],
        start_step: int = 0,
    ) -> None:
        self._steps, self._seconds = steps, seconds
        self._previous_step = start_step
        self._gang, self._timeout, self._clock = gang, timeout, clock
        self._last_time = clock()
        self._steps_since_last = 0
        self._next_look: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due. All ranks call it, after every step or after every few steps."""
        self._steps_since_last += 1
        due = self._steps is not None and step // self._steps > self._previous_step // self._steps
        self._previous_step = step
        if not due and self._seconds is not None and (self._next_look is None or step >= self._next_look):
            steps_away = gather_json(self._gang, self._steps_away(self._seconds), self._timeout)[0]
            due, self._next_look = steps_away == 0, step + steps_away
        if due:
            self._last_time, self._steps_since_last, self._next_look = self._clock(), 0, None
        return due

    def _steps_away(self, seconds: float) -> int:
        """Return the number of steps until the next look at the clock. 0: a checkpoint is due."""
        passed = self._clock() - self._last_time
        if passed >= seconds:
            return 0
        return max(1, int((seconds - passed) / 2 * self._steps_since_last / passed)) if passed > 0 else 1


class Saver:
    """Writer of one rank's part of the checkpoints. Not thread-safe.

    Call it after every step, and close it at the end.
    """

    def __init__(
        self, checkpoints: Checkpoints, run: dict[str, Any], gang: Gang, timeout: float, start_step: int = 0
    ) -> None:
        """Open the storage.

        :param run: run description for the manifest.
        :param start_step: the step that training starts or resumes from.
        """
        self._checkpoints, self._run, self._gang, self._timeout = checkpoints, run, gang, timeout
        self._cadence = Cadence(
            checkpoints.every_steps, checkpoints.every_seconds, gang, timeout, time.monotonic, start_step
        )
        self._store = gang.store("checkpoint")
        self._store.set_timeout(datetime.timedelta(seconds=timeout))
        self._storage = open_storage(checkpoints.directory, timeout, "checkpointDir")
        self._thread = ThreadPoolExecutor(1, "sparkdl-checkpoint")
        self._pending_write: Future[None] | None = None

    def __call__(self, loop: TrainingLoop) -> None:
        """Write a checkpoint if one is due.

        :raises PersistenceError: this or the previous checkpoint cannot be written.
        :raises DeadlineError: the previous checkpoint was not finished in time.
        :raises NonFiniteLossError: a parameter is NaN or infinite, so the checkpoint must not replace a usable one.
        :raises GangError: the gang has failed.
        """
        if self._pending_write is not None and self._pending_write.done():
            self.wait()
        if self._cadence.is_due(loop.version):
            self.wait()
            parts = snapshot(loop, self._gang, self._timeout)
            self._pending_write = self._thread.submit(self._write, loop.version, parts)

    def wait(self) -> None:
        """Wait until this rank's work for the last checkpoint is done. Raises the errors of :meth:`__call__`."""
        if self._pending_write is None:
            return
        if not wait_for([self._pending_write], self._timeout).done:
            raise DeadlineError(
                f"rank {self._gang.rank} did not finish writing a checkpoint to {self._checkpoints.directory} within"
                f" {self._timeout:g} s. Write less often (checkpointInterval, checkpointSeconds), or raise {TIMEOUT_KEY}."
            )
        pending, self._pending_write = self._pending_write, None
        pending.result()

    def close(self) -> None:
        """Release the storage. After a failure, abandon an unfinished write."""
        if self._pending_write is not None:
            self._storage.abort()
            wait_for([self._pending_write], _ABANDON_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._storage.close()

    def _write(self, step: int, parts: dict[str, Tensors]) -> None:
        gang = self._gang
        directory = CheckpointDirectory(self._storage, self._checkpoints.directory, gang.attempt)
        self._store.set(f"{step}/{gang.rank}", json.dumps(directory.write(step, parts)))
        if gang.rank != 0:
            return
        reports = self._store.multi_get([f"{step}/{rank}" for rank in range(gang.world)])
        files = {name: sums for rank in reports for name, sums in json.loads(rank).items()}
        directory.complete(step, self._run, files, self._checkpoints.keep)
        for rank in range(gang.world):
            self._store.delete_key(f"{step}/{rank}")


def snapshot(loop: TrainingLoop, gang: Gang, timeout: float) -> dict[str, Tensors]:
    """Return CPU copies of what this rank writes, by part. All ranks call it."""
    owned, rank = loop.strategy.owned(), gang.rank
    loop.check_finite(owned)
    state = loop.state()
    untrained = state["own"]["untrained"]
    own_digests = digests(untrained)
    rank_0_digests = gather_json(gang, own_digests, timeout)[0]
    # Rank 0 writes its frozen parameters and buffers for all. Other ranks write only the tensors that differ from it,
    # and the names of those that they lack, such as a buffer of a first forward pass that is still to come.
    state["common"]["untrained"] = untrained
    state["own"]["untrained"] = {
        name: tensor for name, tensor in untrained.items() if own_digests[name] != rank_0_digests.get(name)
    }
    state["own"]["missing"] = [name for name in rank_0_digests if name not in own_digests]
    parts = {f"rank-{rank}": _pack(state["own"])}
    if rank == 0:
        parts["common"] = _pack(state["common"])
    if rank == 0 or loop.strategy.is_sharded:
        parts[f"parameters-{rank}"] = {str(start): values for start, values in owned}
        parts[f"optimizer-{rank}"] = _pack(loop.strategy.optimizer_state())
    return {part: {name: _copy(tensor) for name, tensor in tensors.items()} for part, tensors in parts.items()}


def _pack(state: dict[str, Any]) -> Tensors:
    try:
        return pack_value(state)
    except InputError as error:
        raise PersistenceError(f"the training state cannot be stored in a checkpoint: {error.message}") from error


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy on the CPU."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


class Restorer:
    """Loader of one rank's part of the checkpoint from which training resumes.

    All ranks call the methods in the order of their definition. They call :meth:`load_parameters` and
    :meth:`load_state` only if there is a checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, run: dict[str, Any], gang: Gang, timeout: float) -> None:
        """Open the storage. ``run``: see :func:`describe`."""
        self._checkpoints, self._gang, self._timeout = checkpoints, gang, timeout
        self._storage = open_storage(checkpoints.directory, timeout, "checkpointDir")
        self._directory = CheckpointDirectory(self._storage, checkpoints.directory, gang.attempt)
        self._writers = [0]
        self._own_part = f"rank-{gang.rank}"
        #: Step of the checkpoint to resume from. 0: start from the beginning.
        self.step = 0
        #: Run description for new checkpoints. A resumed run keeps the name of the original run.
        self.run = run

    def find(self, warn: Callable[[str], object]) -> None:
        """Set :attr:`step`, and delete what is no longer needed.

        :param warn: called on rank 0 for each skipped checkpoint.
        :raises ConfError: there are checkpoints, and ``resume`` is not set; or the settings differ.
        :raises InputError, ModelError: the rows or the model differ.
        :raises PersistenceError: no checkpoint is intact; or the directory cannot be read or written, or is not shared
            by all ranks.
        """
        rank, directory = self._gang.rank, self._checkpoints.directory
        steps = self._gather(self._directory.steps() if rank == 0 else None)[0]
        check_unused(directory, steps, self._checkpoints.resume)
        for step in steps:
            manifest, fault = self._inspect(step)
            faults = [fault for fault in self._gather(fault) if fault]
            if not faults:
                self._writers = writers_of(manifest)
                self.step, self.run = step, {**self.run, "name": manifest["run"]["name"]}
                break
            if rank == 0:
                warn(f"checkpointDir={directory}: skipped a checkpoint: {faults[0]}")
        if steps and not self.step:
            raise PersistenceError(
                f"checkpointDir={directory}: none of the checkpoints of steps {steps} is intact. Delete them to start over."
            )
        if rank == 0:
            self._directory.clean(self.step)
        self._try_writing()

    def load_parameters(self, model: FlatModel) -> None:
        """Load the values into the module, before it is bound."""
        for part in _parameter_parts(self._writers):
            for start, values in self._directory.read(self.step, part).items():
                model.load(int(start), values)

    def load_state(self, loop: TrainingLoop) -> None:
        """Load the state of optimizer and loop, before the loop runs."""
        loop.strategy.load_optimizer_state(
            unpack_value(self._directory.read(self.step, self._optimizer_part(self._writers)))
        )
        own, common = (unpack_value(self._directory.read(self.step, part)) for part in (self._own_part, "common"))
        loop.load_state({"own": own, "common": common})

    def close(self) -> None:
        self._storage.close()

    def _optimizer_part(self, writers: list[int]) -> str:
        return f"optimizer-{self._gang.rank if len(writers) > 1 else writers[0]}"

    def _try_writing(self) -> None:
        """Let each rank write a file, and check that rank 0 sees all of them.

        A directory that cannot be written or is not shared raises PersistenceError now, not at the first checkpoint.
        """
        probe_name = self._directory.probe(self._gang.rank)
        try:
            names = self._gather(probe_name)
            if self._gang.rank == 0:
                self._directory.check_shared(names)
            self._gather(None)  # rank 0 has seen them
        finally:
            self._directory.delete(probe_name)

    def _gather(self, value: Any) -> list[Any]:
        return gather_json(self._gang, value, self._timeout)

    def _inspect(self, step: int) -> tuple[dict[str, Any], str | None]:
        """Return the manifest, and what is wrong with the files that this rank needs, or None."""
        manifest, fault = self._directory.manifest(step)
        if fault is None:
            check_same(self.run, manifest["run"], step)
            writers = writers_of(manifest)
            parts = [*_parameter_parts(writers), self._optimizer_part(writers), self._own_part, "common"]
            fault = self._directory.find_damage(step, manifest, parts)
        return manifest, fault


def _parameter_parts(writers: list[int]) -> list[str]:
    return [f"parameters-{rank}" for rank in writers]


def describe(name: str, spec: TrainSpec, model: FlatModel, rows: list[str]) -> dict[str, Any]:
    """Return a JSON-able description of a run. To resume, everything but ``name`` must equal the checkpoint's
    description.

    :param rows: a digest of each rank's rows.
    """
    module = model.module
    named = [*module.named_parameters(), *module.named_buffers()]
    return {
        "name": name,
        "world": spec.world,
        "strategy": spec.strategy,
        "loop": spec.conf.collective.loop,
        "compression": as_text(spec.conf.compression.method),
        "device": spec.device,
        "rows_per_step": spec.batch_size * spec.optimization.accumulation_steps,
        "seed": spec.seed,
        "shuffle": spec.conf.data.shuffle,
        "optimizer": _name(spec.optimization.optimizer),
        "lr_scheduler": _name(spec.optimization.lr_scheduler),
        "model": {name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for name, tensor in named},
        "rows": rows,
    }


def _name(factory: Any) -> str | None:
    """Return the class name, also for ``functools.partial(Adam, …)``: the state fits with any arguments."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return None if factory is None else getattr(factory, "__qualname__", type(factory).__qualname__)


def check_same(current: Mapping[str, Any], saved: Mapping[str, Any], step: int) -> None:
    """Check that the run ``current`` can resume from a checkpoint of the run ``saved``.

    :raises ConfError, ModelError, InputError: the settings, the model or the rows differ.
    """
    checkpoint = f"the checkpoint of step {step}"
    for name, param in _SETTINGS.items():
        if current[name] != saved.get(name):
            raise ConfError(
                f"{param}={current[name]!r}: {checkpoint} was made with {saved.get(name)!r}. Resume with that"
                " value, or use another checkpointDir."
            )
    current_model, saved_model = current["model"], saved["model"]
    differences = [
        f"{name} is {current_model[name]}, was {saved_model[name]}"
        for name in current_model
        if saved_model.get(name, current_model[name]) != current_model[name]
    ]
    missing, unexpected = sorted(set(saved_model) - set(current_model)), sorted(set(current_model) - set(saved_model))
    if differences or missing or unexpected:
        parts = (
            ("different shape or type", differences),
            ("not in this model", missing),
            ("only in this model", unexpected),
        )
        raise ModelError(
            f"{checkpoint} is of another model: "
            + "; ".join(f"{label}: {', '.join(items)}" for label, items in parts if items)
        )
    changed_ranks = [rank for rank, rows in enumerate(current["rows"]) if rows != saved["rows"][rank]]
    if changed_ranks:
        raise InputError(
            f"ranks {changed_ranks} of {len(current['rows'])} have other rows than when {checkpoint} was made: the"
            " DataFrame does not give the same rows each time. Columns may be random (rand(), uuid()) or depend on the order"
            " or partitions of rows (monotonically_increasing_id(), first(), sums of floats). Write the DataFrame to a table"
            " once, and call fit on that table; df.checkpoint() is enough if only ranks restart, not the application. To"
            " start over, use another checkpointDir."
        )
