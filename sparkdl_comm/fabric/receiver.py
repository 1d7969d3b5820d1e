"""What a daemon receives: whole transfers, put together from what came over the rails."""

from __future__ import annotations

import logging
import socket
import threading
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.message import HEADER_BYTES, Header, Kind
from sparkdl_comm.fabric.protocol import Expect
from sparkdl_comm.gang.frames import TIMEOUT_KEY, Clock, hang_up, recv_exact, recv_into

_PIECE = 1 << 20
#: Seconds for which a connection may be idle before it is looked at again.
_IDLE = 3600.0
#: Seconds within which the scheduler says that a sender is lost, after a connection was broken off in the middle of a message.
_SETTLED = 5.0

_log = logging.getLogger(__name__)


@dataclass
class Arrival:
    """A transfer that has come: float32 ``values``; of its last message the ``header``."""

    expected: Expect
    values: np.ndarray
    header: Header


class _Incoming:
    """A transfer of which something, or nothing yet, has come; ``missing``: bytes that have not."""

    def __init__(self, expected: Expect) -> None:
        self.expected = expected
        self.missing = 4 * expected.elements
        self._values: np.ndarray | None = None
        self._lock = threading.Lock()

    @property
    def values(self) -> np.ndarray:
        """Memory for it, made when the first part comes."""
        with self._lock:
            if self._values is None:
                self._values = np.empty(self.expected.elements, np.float32)
            return self._values

    def room(self, header: Header) -> memoryview:
        return self.values.view(np.uint8).data[header.offset : header.offset + header.length]


class Receiver:
    """Of one daemon. ``on_arrival`` is called in the thread of a connection, with each transfer that was expected;
    ``on_refusal`` with why something that is still expected cannot be taken: nobody sends it again. ``patience``: seconds
    that a message may take from one piece to the next, and that it may come before it is expected."""

    def __init__(
        self,
        on_arrival: Callable[[Arrival], None],
        on_refusal: Callable[[GangError], None],
        patience: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._on_arrival, self._on_refusal, self._patience, self._clock = on_arrival, on_refusal, patience, clock
        self._changed = threading.Condition()
        self._incoming: dict[int, _Incoming] = {}
        #: Transfers that were cancelled: they may be on their way, and what a connection brings has to be read.
        self._cancelled: dict[int, Expect] = {}
        self._delivering: set[int] = set()
        self._sockets: set[socket.socket] = set()
        self._closed = False

    def expect(self, expected: Expect) -> None:
        with self._changed:
            self._incoming[expected.transfer] = _Incoming(expected)
            self._changed.notify_all()

    def cancel(self, transfer: int) -> None:
        """It is not expected any more; what has come of it is forgotten."""
        with self._changed:
            incoming = self._incoming.pop(transfer, None)
            if incoming is not None:
                self._cancelled[transfer] = incoming.expected
                self._changed.notify_all()

    def fence(self, transfers: Collection[int], sender: str) -> None:
        """As :meth:`cancel`; and ``on_arrival`` has returned for those that have come.

        :param sender: who sent them, for people.
        :raises DeadlineError: it has not returned in time.
        """
        with self._changed:
            for transfer in transfers:
                self.cancel(transfer)
            if not self._changed.wait_for(lambda: self._delivering.isdisjoint(transfers), self._patience):
                raise DeadlineError(
                    f"what {sender} had sent was not put to its use within {self._patience:g} s; set {TIMEOUT_KEY}"
                )

    def serve(self, sock: socket.socket, rank: int) -> None:
        """Receives from an authenticated connection of ``rank`` until it ends; owns it."""
        header: Header | None = None
        with self._changed:
            self._sockets.add(sock)
        try:
            while not self._closed:
                header = None
                try:
                    head = recv_exact(sock, HEADER_BYTES, self._clock() + _IDLE, self._clock)
                except DeadlineError:
                    continue
                header, crc = Header.unpack(head)
                self._receive(sock, header, crc)
        except ProtocolError as exc:
            what = "" if header is None else f"{header.named}: "
            self._on_refusal(ProtocolError(f"rank {rank} sent what cannot be taken: {what}{exc.message}", rank=rank))
        except (SparkdlCommError, OSError) as exc:
            _log.info("a data connection of rank %d ended: %s", rank, exc)
            if header is not None and self._remains_expected(header.id):
                self._on_refusal(GangError(f"rank {rank} sent a part only of {header.named}: {exc}", rank=rank))
        finally:
            with self._changed:
                self._sockets.discard(sock)
            sock.close()

    def sockets(self) -> list[socket.socket]:
        with self._changed:
            return list(self._sockets)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._incoming.clear()
            self._changed.notify_all()
            for sock in self._sockets:
                hang_up(sock)

    def _receive(self, sock: socket.socket, header: Header, crc: int) -> None:
        incoming = self._await_expected(header)
        room = incoming.room(header)
        for start in range(0, len(room), _PIECE):
            recv_into(sock, room[start : start + _PIECE], self._clock() + self._patience, self._clock)
        if zlib.crc32(room) != crc:
            raise ProtocolError("the checksum is another one than its bytes have")
        with self._changed:
            incoming.missing -= header.length
            if incoming.missing or self._incoming.pop(header.id, None) is not incoming:
                return
            self._delivering.add(header.id)
        try:
            self._on_arrival(Arrival(incoming.expected, incoming.values, header))
        finally:
            with self._changed:
                self._delivering.discard(header.id)
                self._changed.notify_all()

    def _remains_expected(self, transfer: int) -> bool:
        """Whether nobody says that nothing more comes of it: its sender is there, and has no reason to break it off."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed or transfer not in self._incoming, _SETTLED)

    def _await_expected(self, header: Header) -> _Incoming:
        """What the scheduler said of the transfer: that may come a little later than the transfer itself."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or header.id in self._incoming or header.id in self._cancelled, self._patience
            )
            incoming = self._incoming.get(header.id)
            if header.id in self._cancelled:
                incoming = _Incoming(self._cancelled[header.id])
        if incoming is None:
            raise ProtocolError("the scheduler has not announced it")
        expected = incoming.expected
        kind = Kind(expected.content)
        if header.kind is not kind or header.length > incoming.missing or header.offset % 4:
            raise ProtocolError(f"it is no {kind.name} of {expected.elements} elements: {header}")
        if header.offset + header.length > 4 * expected.elements:
            raise ProtocolError(f"it has {expected.elements} elements; it came with {header}")
        return incoming
