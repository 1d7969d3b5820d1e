"""Aggregator's role: sums the updates it receives and sends the sum on. It also forwards models.

It adds updates in the scheduler's order, each as soon as it has arrived. The same order gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.fabric.message import Kind
from sparkdl_comm.fabric.node_role import NodeRole, Payload
from sparkdl_comm.fabric.protocol import Cancel, Ended, Message, Regroup, Send
from sparkdl_comm.fabric.receiver import Arrival


@dataclass
class _Held:
    """Received transfer with the number of orders that still need it."""

    arrival: Arrival
    uses: int


class AggregatorRole(NodeRole):
    """Role of an aggregator."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, _Held] = {}
        self._cancelled: set[int] = set()
        self._regrouped: dict[int, Regroup | Send] = {}

    def on_arrival(self, arrival: Arrival) -> None:
        transfer = arrival.expected.transfer
        with self._changed:
            if transfer in self._cancelled:
                return
            self.report(Ended(transfer))
            self._held[transfer] = _Held(arrival, arrival.expected.uses)
            self._changed.notify_all()

    def await_payload(self, order: Send) -> Payload | None:
        return self._model(order) if order.content == Kind.MODEL else self._sum(order)

    def on_message(self, message: Message) -> None:
        if isinstance(message, Cancel):
            with self._changed:
                self._cancelled.add(message.transfer)
                self._held.pop(message.transfer, None)
                self._changed.notify_all()
        elif isinstance(message, Regroup):
            with self._changed:
                self._regrouped[message.transfer] = message

    def end(self, error: SparkdlCommError | None) -> None:
        with self._changed:
            self._held.clear()
        super().end(error)

    def _sum(self, order: Send) -> Payload | None:
        total: np.ndarray | None = None
        for transfer in order.of:
            arrival, last = self._await(transfer, order.transfer)
            if arrival is None:
                continue
            part = arrival.values[order.offset : order.offset + order.elements]
            if total is None:
                total = part if last else part.copy()  # the last user may overwrite the received values
            else:
                np.add(total, part, out=total)
        with self._changed:
            kept = self._regrouped.pop(order.transfer, order)
        return None if total is None else Payload(total, kept.staleness, kept.count)

    def _model(self, order: Send) -> Payload | None:
        model, versions = np.empty(order.elements, np.float32), []
        for transfer in order.of:
            arrival, _ = self._await(transfer, order.transfer)
            if arrival is None:
                return None
            start = arrival.expected.offset - order.offset
            model[start : start + len(arrival.values)] = arrival.values
            versions.append(arrival.header.base_version)
        return Payload(model, min(versions))

    def _await(self, transfer: int, mine: int) -> tuple[Arrival | None, bool]:
        """Wait for ``transfer``, which the order ``mine`` needs.

        Return the arrival and whether this was its last use. The arrival is None if either transfer was cancelled or
        the job has ended.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_ended or transfer in self._held or self._cancelled & {transfer, mine}
            )
            held = self._held.get(transfer)
            if held is None or mine in self._cancelled:
                return None, False
            held.uses -= 1
            if held.uses <= 0:
                del self._held[transfer]
            return held.arrival, held.uses <= 0
