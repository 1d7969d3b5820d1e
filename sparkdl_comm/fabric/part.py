"""What a node makes of what its daemon sends and receives: the base of workers, servers and aggregators."""

from __future__ import annotations

import threading

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.protocol import Message, Send
from sparkdl_comm.fabric.receiver import Arrival


class Part:
    """Of one node; by itself it only waits for the end. The daemon's threads call its methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._over = False
        self._error: SparkdlCommError | None = None

    def arrived(self, arrival: Arrival) -> int | None:
        """A transfer has come. The version in it, or -1; None: the part tells the scheduler itself, later."""
        raise ProtocolError(f"transfer {arrival.expected.transfer} came to a rank that takes no data")

    def values(self, order: Send) -> tuple[np.ndarray, int] | None:
        """What is to be sent, float32 ``[order.elements]``, and the version for its header; waits until all of it is there.
        None: there is nothing to send any more."""
        raise ProtocolError(f"transfer {order.transfer} was ordered from a rank that has no data")

    def hear(self, message: Message) -> None:
        """What else the scheduler says."""

    def end(self, error: SparkdlCommError | None) -> None:
        """The work is done; or why it cannot go on. The first call counts."""
        with self._changed:
            if not self._over:
                self._over, self._error = True, error
                self._changed.notify_all()

    def await_end(self, timeout: float | None = None) -> None:
        """Returns when the job has ended: all workers have left.

        :raises DeadlineError: it has not within ``timeout`` seconds.
        :raises SparkdlCommError: why it cannot go on.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._over, timeout):
                raise DeadlineError(f"the fabric's job did not end within {timeout:g} s")
        if self._error is not None:
            raise self._error

    def _check(self) -> None:
        """:class:`GangError`, or what it was, if the job has ended."""
        if self._over:
            raise self._error or GangError("the fabric's job has ended")
