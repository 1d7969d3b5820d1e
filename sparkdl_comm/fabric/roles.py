"""Roles of nodes: their base class, and the aggregator, which sums the updates it receives and sends the sum on.

A role is what a node does with the data of its daemon. An aggregator also forwards models. It adds updates in the
scheduler's order, each as soon as it has arrived. The same order gives the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.protocol import Cancel, Ended, Fence, Fenced, Kind, Message, Regroup, Send
from sparkdl_comm.fabric.transport import Arrival


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

        A subclass that applies transfers discards the ones it has not applied, then calls this method.
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


@dataclass
class _BufferedArrival:
    """Received transfer with the number of orders that still need it."""

    arrival: Arrival
    uses: int


class Aggregator(NodeRole):
    """Role of an aggregator."""

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: dict[int, _BufferedArrival] = {}
        self._cancelled_transfers: set[int] = set()
        self._regroups: dict[int, Regroup | Send] = {}

    def on_arrival(self, arrival: Arrival) -> None:
        transfer = arrival.expected.transfer
        with self._changed:
            if transfer in self._cancelled_transfers:
                return
            self.report(Ended(transfer))
            self._arrivals[transfer] = _BufferedArrival(arrival, arrival.expected.uses)
            self._changed.notify_all()

    def await_payload(self, order: Send) -> Payload | None:
        return self._join_model(order) if order.content == Kind.MODEL else self._sum_updates(order)

    def on_message(self, message: Message) -> None:
        if isinstance(message, Cancel):
            with self._changed:
                self._cancelled_transfers.add(message.transfer)
                self._arrivals.pop(message.transfer, None)
                self._changed.notify_all()
        elif isinstance(message, Regroup):
            with self._changed:
                self._regroups[message.transfer] = message

    def end(self, error: SparkdlCommError | None) -> None:
        with self._changed:
            self._arrivals.clear()
        super().end(error)

    def _sum_updates(self, order: Send) -> Payload | None:
        total: NDArray[np.float32] | None = None
        for transfer in order.of:
            arrival, last = self._await_arrival(transfer, order.transfer)
            if arrival is None:
                continue
            part = arrival.values[order.offset : order.offset + order.elements]
            if total is None:
                total = part if last else part.copy()  # the last user may overwrite the received values
            else:
                np.add(total, part, out=total)
        with self._changed:
            current = self._regroups.pop(order.transfer, order)
        return None if total is None else Payload(total, current.staleness, current.count)

    def _join_model(self, order: Send) -> Payload | None:
        model, versions = np.empty(order.elements, np.float32), []
        for transfer in order.of:
            arrival, _ = self._await_arrival(transfer, order.transfer)
            if arrival is None:
                return None
            start = arrival.expected.offset - order.offset
            model[start : start + len(arrival.values)] = arrival.values
            versions.append(arrival.header.base_version)
        return Payload(model, min(versions))

    def _await_arrival(self, transfer: int, consumer: int) -> tuple[Arrival | None, bool]:
        """Wait for ``transfer``, which the order ``consumer`` needs.

        Return the arrival and whether this was its last use. The arrival is None if either transfer was cancelled or
        the job has ended.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._has_ended or transfer in self._arrivals or self._cancelled_transfers & {transfer, consumer}
                )
            )
            buffered = self._arrivals.get(transfer)
            if buffered is None or consumer in self._cancelled_transfers:
                return None, False
            buffered.uses -= 1
            if buffered.uses <= 0:
                del self._arrivals[transfer]
            return buffered.arrival, buffered.uses <= 0
