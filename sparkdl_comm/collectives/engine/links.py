"""Connections of a gang's socket engines: one per peer and rail, from NIC to NIC, authenticated, made on demand."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sparkdl_comm.collectives.engine.job import Channel
from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.frames import TIMEOUT_KEY, hang_up
from sparkdl_comm.gang.gang import Gang


class Links:
    """Connections of one engine.

    ``name``: name of the engine; each engine of a gang has its own. ``order[place]``: the gang's rank that is rank
    ``place`` of the plans. ``rails[rail]``: the gang's rail that is rail ``rail`` of the plans. ``timeout``: seconds to
    connect.

    Of two ranks, the one that is first in the order dials.
    """

    def __init__(self, gang: Gang, name: str, order: Sequence[int], rails: Sequence[int], timeout: float) -> None:
        self._gang, self._name, self._order, self._timeout = gang, name, order, timeout
        self._place, self._rails = order.index(gang.rank), rails
        self._changed = threading.Condition()
        self._arrived: dict[Channel, socket.socket] = {}
        self._closed = False
        for rail in range(len(rails)):
            gang.serve(self._service_name(rail), self._arrival_handler(rail))
        gang.on_failure(lambda _: self._wake())

    def connect(self, channels: Iterable[Channel]) -> dict[Channel, socket.socket]:
        """Return the sockets of the channels. The peers must ask for their channels to this rank at the same time.

        :raises DeadlineError: a peer did not connect within the timeout.
        :raises SparkdlCommError: the gang has failed, or a peer cannot be reached.
        """
        found: dict[Channel, socket.socket] = {}
        try:
            self._collect_sockets(list(channels), found)
        except BaseException:
            for sock in found.values():
                sock.close()
            raise
        return found

    def close(self) -> None:
        """Close the sockets that arrived and were not asked for, and all that arrive later."""
        with self._changed:
            self._closed = True
            for sock in self._arrived.values():
                sock.close()
            self._arrived.clear()

    def _collect_sockets(self, wanted: list[Channel], found: dict[Channel, socket.socket]) -> None:
        """Put the sockets of the channels ``wanted`` into ``found``, one by one."""
        deadline = time.monotonic() + self._timeout
        for peer, rail in wanted:
            if self._place < peer:
                found[peer, rail] = self._gang.dial(
                    self._order[peer], self._service_name(rail), deadline, self._rails[rail]
                )
        awaited = set(wanted) - found.keys()
        with self._changed:
            self._changed.wait_for(
                lambda: awaited <= self._arrived.keys() or self._gang.failure() is not None,
                max(0.0, deadline - time.monotonic()),
            )
            self._gang.check()
            if not awaited <= self._arrived.keys():
                peer, rail = min(awaited - self._arrived.keys())
                raise DeadlineError(
                    f"rank {self._order[peer]} did not connect to rank {self._gang.rank} over rail {rail} within"
                    f" {self._timeout:g} s; set {TIMEOUT_KEY}",
                    rank=self._order[peer],
                )
            found |= {channel: self._arrived.pop(channel) for channel in awaited}

    def _arrival_handler(self, rail: int) -> Callable[[socket.socket, int], None]:
        def on_arrival(sock: socket.socket, rank: int) -> None:
            channel = self._order.index(rank), rail
            with self._changed:
                if self._closed or channel in self._arrived:
                    hang_up(sock)
                    sock.close()
                    return
                self._arrived[channel] = sock
                self._changed.notify_all()

        return on_arrival

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _service_name(self, rail: int) -> str:
        return f"collective {self._name} on rail {rail}"
