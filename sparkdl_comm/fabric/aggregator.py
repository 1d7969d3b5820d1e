"""Aggregator's role: sums the updates it receives and sends the sum on. It also forwards models.

It adds updates in the scheduler's order, each as soon as it has arrived. The same order gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.fabric.message import Kind
from sparkdl_comm.fabric.node_role import NodeRole, Payload
from sparkdl_comm.fabric.protocol import Cancel, Ended, Message, Regroup, Send
from sparkdl_comm.fabric.receiver import Arrival


@dataclass
class _BufferedArrival:
    """Received transfer with the number of orders that still need it."""

    arrival: Arrival
    uses: int


class AggregatorRole(NodeRole):
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
