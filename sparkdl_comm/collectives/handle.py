"""Collectives that are under way, of torch.distributed or of this package's engines, as a Communicator gives them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sparkdl_comm.collectives.engine.base import Work
from sparkdl_comm.collectives.group import Finishing
from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.torch_errors import peer_late

T = TypeVar("T")


class Handle(Generic[T]):
    """A collective that is under way. Its tensors must not be touched until :meth:`wait` returns."""

    def __init__(self, what: str, gang: Gang, timeout: float, work: Any, result: T) -> None:
        """Not to be called directly."""
        self._what, self._gang, self._timeout, self._work, self._result = what, gang, timeout, work, result

    def wait(self, timeout: float | None = None) -> T:
        """The result, after at most ``timeout`` seconds (None: ``spark.sparkdl.comm.timeout``).

        :raises DeadlineError: the other ranks were not there in time.
        :raises SparkdlCommError: the gang's failure, if a rank failed meanwhile.
        """
        seconds = self._timeout if timeout is None else timeout
        with typed(self._what, self._gang, seconds):
            self._work.wait(datetime.timedelta(seconds=seconds))
        return self._result


class EngineWork:
    """A collective of this package's as torch.distributed's Work."""

    def __init__(self, job: Work | Finishing) -> None:
        self._job = job

    def wait(self, timeout: datetime.timedelta) -> None:
        self._job.wait(timeout.total_seconds())


@contextmanager
def typed(what: str, gang: Gang, seconds: float) -> Iterator[None]:
    """torch's errors as ours: the gang's failure if there is one, else DeadlineError for a time-out."""
    try:
        yield
    except RuntimeError as exc:
        gang.check(VERDICT_SECONDS)
        if not peer_late(exc):
            raise
        raise DeadlineError(
            f"rank {gang.rank} waited {seconds:g} s for the others in {what}; set {TIMEOUT_KEY}",
            rank=gang.rank,
            phase=what,
        ) from exc
