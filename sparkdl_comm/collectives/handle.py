"""Handles of collectives under way, whether torch.distributed or an engine of this package runs them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sparkdl_comm.collectives.engine.base import Work
from sparkdl_comm.collectives.group import PostprocessedWork
from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.torch_errors import is_peer_late

T = TypeVar("T")


class Handle(Generic[T]):
    """Collective under way, with its result. Do not touch its tensors until :meth:`wait` returns."""

    def __init__(self, name: str, gang: Gang, timeout: float, work: Any, result: T) -> None:
        """Create a handle. Internal: methods of Communicator return it."""
        self._name, self._gang, self._timeout, self._work, self._result = name, gang, timeout, work, result

    def wait(self, timeout: float | None = None) -> T:
        """Wait at most ``timeout`` seconds and return the result. None stands for ``spark.sparkdl.comm.timeout``.

        :raises DeadlineError: the other ranks did not take part in time.
        :raises SparkdlCommError: the gang's failure, if a rank failed meanwhile.
        """
        seconds = self._timeout if timeout is None else timeout
        with translate_torch_errors(self._name, self._gang, seconds):
            self._work.wait(datetime.timedelta(seconds=seconds))
        return self._result


class EngineWork:
    """Adapter that gives a collective of this package the interface of torch.distributed's Work."""

    def __init__(self, job: Work | PostprocessedWork) -> None:
        self._job = job

    def wait(self, timeout: datetime.timedelta) -> None:
        self._job.wait(timeout.total_seconds())


@contextmanager
def translate_torch_errors(name: str, gang: Gang, seconds: float) -> Iterator[None]:
    """Turn torch's errors into this package's: the gang's failure if there is one, else DeadlineError for a time-out."""
    try:
        yield
    except RuntimeError as exc:
        gang.check(VERDICT_SECONDS)
        if not is_peer_late(exc):
            raise
        raise DeadlineError(
            f"rank {gang.rank} waited {seconds:g} s for the others in {name}; set {TIMEOUT_KEY}",
            rank=gang.rank,
            phase=name,
        ) from exc
