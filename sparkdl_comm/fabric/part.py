"""What a node makes of what its daemon sends and receives: the base of workers, servers and aggregators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.protocol import Fence, Fenced, Message, Send
from sparkdl_comm.fabric.receiver import Arrival


@dataclass(frozen=True)
class Values:
    """What is to be sent: float32 ``values``; for the header, ``version`` (``Header.base_version``) and ``count``."""

    values: np.ndarray
    version: int
    count: int = 0


class Part:
    """Of one node; by itself it only waits for the end. The daemon's threads call its methods. ``tell`` says something to the
    scheduler; the daemon puts it there, before anything else happens."""

    tell: Callable[[Message], None]

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._over = False
        self._error: SparkdlCommError | None = None

    def arrived(self, arrival: Arrival) -> None:
        """A transfer has come. Once it has been put to its use, the part tells the scheduler :class:`Ended`."""
        raise ProtocolError(f"transfer {arrival.expected.transfer} came to a rank that takes no data")

    def values(self, order: Send) -> Values | None:
        """What is to be sent; waits until all of it is there. None: there is nothing to send any more.

        The wait ends with what is waited for, with its being cancelled, or with the job: for a node that is there and sends
        nothing, that is when some worker's own wait for its update or for the model has lasted for the timeout.
        """
        raise ProtocolError(f"transfer {order.transfer} was ordered from a rank that has no data")

    def hear(self, message: Message) -> None:
        """What else the scheduler says."""

    def fence(self, message: Fence) -> None:
        """Nothing more comes of the transfers that are fenced off; answers so."""
        self.tell(Fenced(message.number))

    def finish(self, timeout: float) -> None:
        """Returns when nobody needs this node any more for what it has begun, or after ``timeout`` seconds."""

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
