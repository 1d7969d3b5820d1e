"""Base class of a node's role: what a worker, server or aggregator does with the data of its daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.protocol import Fence, Fenced, Message, Send
from sparkdl_comm.fabric.receiver import Arrival


@dataclass(frozen=True)
class Payload:
    """Data to send: float32 ``values``, and for the header ``version`` (``Header.base_version``) and ``count``."""

    values: NDArray[np.float32]
    version: int
    count: int = 0


class NodeRole:
    """Role of one node, called from the daemon's threads. The base class itself only waits for the end of the job.

    ``report`` sends a message to the scheduler. The daemon sets it before any other call.
    """

    report: Callable[[Message], None]

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._has_ended = False
        self._error: SparkdlCommError | None = None

    def on_arrival(self, arrival: Arrival) -> None:
        """Take a transfer that has arrived. After using its data, the role sends :class:`Ended` to the scheduler."""
        raise ProtocolError(f"transfer {arrival.expected.transfer} arrived at a rank that receives no data")

    def await_payload(self, order: Send) -> Payload | None:
        """Return the data to send, once all of it is there. Return None if the transfer no longer takes place.

        The wait ends when the data arrives, the transfer is cancelled, or the job ends. If a live node never sends its
        part, the job ends when some worker's own wait, for its update or for the model, exceeds the timeout.
        """
        raise ProtocolError(f"transfer {order.transfer} was ordered from a rank that sends no data")

    def on_message(self, message: Message) -> None:
        """Take any other message of the scheduler."""

    def on_fence(self, message: Fence) -> None:
        """Answer with :class:`Fenced` when no fenced transfer can be applied any more.

        A subclass that applies transfers discards those that it has not applied, then calls this method.
        """
        self.report(Fenced(message.number))

    def await_idle(self, timeout: float) -> None:
        """Wait until nobody needs this node's started work any more, or for ``timeout`` seconds."""

    def end(self, error: SparkdlCommError | None) -> None:
        """End the work, or report why it cannot continue. Only the first call has an effect."""
        with self._changed:
            if not self._has_ended:
                self._has_ended, self._error = True, error
                self._changed.notify_all()

    def await_end(self, timeout: float | None = None) -> None:
        """Wait until the job has ended, which is when all workers have left.

        :raises DeadlineError: the job has not ended within ``timeout`` seconds.
        :raises SparkdlCommError: why the job cannot continue.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_ended, timeout):
                raise DeadlineError(f"the fabric's job did not end within {timeout:g} s")
        if self._error is not None:
            raise self._error

    def _raise_if_ended(self) -> None:
        """Raise the job's error, or :class:`GangError`, if the job has ended."""
        if self._has_ended:
            raise self._error or GangError("the fabric's job has ended")
