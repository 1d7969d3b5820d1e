"""Writing of checkpoints during training: when, and what each rank writes.

1. After an optimizer step that :class:`Cadence` selects, the same on all ranks, each rank copies its part of the state.
   Asynchronous strategies do so at the end of an epoch, and count updates of the model as steps.
2. A thread writes the copy while training continues, and reports to rank 0 through the gang's store. If the previous
   checkpoint is still being written, training waits.
3. Rank 0's thread completes the checkpoint when all ranks have reported.

If the strategy is sharded, each rank writes its part of parameters and optimizer state. Otherwise rank 0 writes all of
them. An error in the thread ends the fit.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import torch

from sparkdl_comm.errors import DeadlineError, InputError, PersistenceError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import pack_value
from sparkdl_comm.space.untrained_state import digests
from sparkdl_comm.storage.files import open_storage
from sparkdl_comm.train.checkpoint_directory import CheckpointDirectory, Tensors
from sparkdl_comm.train.spec import Checkpoints
from sparkdl_comm.train.training_loop import TrainingLoop

#: Seconds that a failing rank waits for an unfinished write.
_ABANDON_SECONDS = 2.0


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
