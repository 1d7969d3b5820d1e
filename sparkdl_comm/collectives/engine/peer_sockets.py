"""Sockets to the peers of one engine, one per peer and rail, from NIC to NIC, authenticated, made on demand.

A peer whose memory this process reads has one more, for confirmations (see ``peer_memory.py``).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkdl_comm.collectives.engine.job import Channel
from sparkdl_comm.collectives.engine.peer_memory import PeerMemory
from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.frames import TIMEOUT_KEY, hang_up
from sparkdl_comm.gang.gang import Gang


@dataclass(frozen=True)
class MemoryLink:
    """Peer on this host: the two processes read each other's memory.

    ``confirmations``: connection on which each side sends a byte for each message that it has read.
    """

    memory: PeerMemory
    confirmations: socket.socket


@dataclass(frozen=True)
class Link:
    """Connection to a peer over a rail. ``memory``: None if the contents of all messages use the socket."""

    sock: socket.socket
    memory: MemoryLink | None = None

    def close(self) -> None:
        self.sock.close()
        if self.memory is not None:
            self.memory.confirmations.close()


#: Key of a socket: its channel, and whether it is the one for confirmations.
_Key = tuple[Channel, bool]


class PeerSockets:
    """Connections of one engine.

    ``name``: name of the engine; each engine of a gang has its own. ``order[place]``: the gang's rank that is rank
    ``place`` of the plans. ``rails[rail]``: the gang's rail that is rail ``rail`` of the plans. ``timeout``: seconds to
    connect. ``memories``: memory of the peers that read this process too, by their places.

    Of two ranks, the one that is first in the order dials.
    """

    def __init__(
        self,
        gang: Gang,
        name: str,
        order: Sequence[int],
        rails: Sequence[int],
        timeout: float,
        memories: Mapping[int, PeerMemory] | None = None,
    ) -> None:
        self._gang, self._name, self._order, self._timeout = gang, name, order, timeout
        self._memories = memories or {}
        self._place, self._rails = order.index(gang.rank), rails
        self._changed = threading.Condition()
        self._arrived: dict[_Key, socket.socket] = {}
        self._closed = False
        for rail in range(len(rails)):
            gang.serve(self._service_name(rail, False), self._arrival_handler(rail, False))
            if self._memories:
                gang.serve(self._service_name(rail, True), self._arrival_handler(rail, True))
        gang.on_failure(lambda _: self._wake())

    def connect(self, channels: Iterable[Channel]) -> dict[Channel, Link]:
        """Return the links of the channels. The peers must ask for their channels to this rank at the same time.

        :raises DeadlineError: a peer did not connect within the timeout.
        :raises SparkdlCommError: the gang has failed, or a peer cannot be reached.
        """
        wanted = list(channels)
        keys: list[_Key] = [(channel, False) for channel in wanted]
        keys += [(channel, True) for channel in wanted if channel[0] in self._memories]
        found: dict[_Key, socket.socket] = {}
        try:
            self._collect_sockets(keys, found)
        except BaseException:
            for sock in found.values():
                sock.close()
            raise
        links = {}
        for channel in wanted:
            confirmations = found.get((channel, True))
            memory = None if confirmations is None else MemoryLink(self._memories[channel[0]], confirmations)
            links[channel] = Link(found[channel, False], memory)
        return links

    def close(self) -> None:
        """Close the sockets that arrived and were not asked for, and all that arrive later."""
        with self._changed:
            self._closed = True
            for sock in self._arrived.values():
                sock.close()
            self._arrived.clear()

    def _collect_sockets(self, wanted: Sequence[_Key], found: dict[_Key, socket.socket]) -> None:
        """Put the sockets ``wanted`` into ``found``, one by one."""
        deadline = time.monotonic() + self._timeout
        for key in wanted:
            (peer, rail), confirms = key
            if self._place < peer:
                found[key] = self._gang.dial(
                    self._order[peer], self._service_name(rail, confirms), deadline, self._rails[rail]
                )
        awaited = set(wanted) - found.keys()
        with self._changed:
            self._changed.wait_for(
                lambda: awaited <= self._arrived.keys() or self._gang.failure() is not None,
                max(0.0, deadline - time.monotonic()),
            )
            self._gang.check()
            if not awaited <= self._arrived.keys():
                (peer, rail), _ = min(awaited - self._arrived.keys())
                raise DeadlineError(
                    f"rank {self._order[peer]} did not connect to rank {self._gang.rank} over rail {rail} within"
                    f" {self._timeout:g} s; set {TIMEOUT_KEY}",
                    rank=self._order[peer],
                )
            found |= {key: self._arrived.pop(key) for key in awaited}

    def _arrival_handler(self, rail: int, confirms: bool) -> Callable[[socket.socket, int], None]:
        def on_arrival(sock: socket.socket, rank: int) -> None:
            key = (self._order.index(rank), rail), confirms
            with self._changed:
                if self._closed or key in self._arrived:
                    hang_up(sock)
                    sock.close()
                    return
                self._arrived[key] = sock
                self._changed.notify_all()

        return on_arrival

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _service_name(self, rail: int, confirms: bool) -> str:
        return f"{'confirmations of ' if confirms else ''}collective {self._name} on rail {rail}"
