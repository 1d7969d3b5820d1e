"""Data messages between daemons over the rails, and a daemon's receiver, which reassembles transfers from them.

A message is a header of fixed size, followed by its bytes. It carries the part of one transfer that uses one rail: part
of an update, of a sum of updates, or of a model. The scheduler announces each transfer to its receiver. So the receiver
checks a header before it allocates memory.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.protocol import Expect, Kind
from sparkdl_comm.gang.frames import TIMEOUT_KEY, await_message, hang_up, recv_exact, recv_into

#: Kind, updates in the sum, id, base version, norm, offset, length, next hop. Two checksums follow: of these fields,
#: then of the bytes.
_FIELDS = struct.Struct("!BIQqdQQi")
_CRCS = struct.Struct("!II")
HEADER_BYTES = _FIELDS.size + _CRCS.size
#: Next hop of a message that ends at its receiver.
NO_NEXT_HOP = -1
_PIECE_BYTES = 1 << 20
#: Seconds within which the scheduler reports a lost sender, after its connection broke in the middle of a message.
_SETTLED_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Header:
    """Header of a message.

    - ``id``: the transfer's number at the scheduler.
    - ``base_version``: of an update, the model version that it was computed from. Of a sum, the minimum over its
      updates of base version minus place in the sum. The server's version minus this minimum is the largest delay in
      the sum. Of a model, its version.
    - ``norm``: L2 norm of the update; of a sum, an upper bound.
    - ``count``: updates in the sum.
    - ``offset``, ``length``: position of the message's bytes in the transfer, in bytes.
    - ``next_hop``: the rank to which the receiver forwards the data, or ``NO_NEXT_HOP``.
    """

    kind: Kind
    id: int = 0
    base_version: int = 0
    norm: float = 0.0
    count: int = 0
    offset: int = 0
    length: int = 0
    next_hop: int = NO_NEXT_HOP

    def pack(self, data: memoryview) -> bytes:
        """Return the header with both checksums. ``data``: the bytes that follow it."""
        fields = _FIELDS.pack(
            self.kind, self.count, self.id, self.base_version, self.norm, self.offset, self.length, self.next_hop
        )
        return fields + _CRCS.pack(zlib.crc32(fields), zlib.crc32(data))

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Header, int]:
        """Parse ``HEADER_BYTES`` bytes. Return the header and the expected CRC-32 of the bytes that follow.

        :raises ProtocolError: the header is damaged, or its kind is unknown.
        """
        crc, crc_of_bytes = _CRCS.unpack_from(data, _FIELDS.size)
        if zlib.crc32(data[: _FIELDS.size]) != crc:
            raise ProtocolError("the checksum of a message header does not match")
        kind, count, number, base, norm, offset, length, hop = _FIELDS.unpack_from(data)
        try:
            header = cls(Kind(kind), number, base, norm, count, offset, length, hop)
        except ValueError as exc:
            raise ProtocolError(f"unknown message kind {kind}") from exc
        return header, crc_of_bytes

    @property
    def description(self) -> str:
        """Name of the transfer for messages to people."""
        content = {Kind.MODEL: "the model", Kind.STATE: "a server's state"}.get(self.kind, f"{self.count} update(s)")
        return f"transfer {self.id} ({content}, version {self.base_version})"


@dataclass
class Arrival:
    """Transfer that has arrived completely: float32 ``values``, and the ``header`` of its last message."""

    expected: Expect
    values: NDArray[np.float32]
    header: Header


class _Incoming:
    """Announced transfer that is not complete. ``missing_bytes``: bytes that have not arrived."""

    def __init__(self, expected: Expect) -> None:
        self.expected, self.missing_bytes = expected, 4 * expected.elements

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Memory for the transfer, allocated when its first message arrives. That message's thread has the receiver's
        lock."""
        return np.empty(self.expected.elements, np.float32)


class Receiver:
    """Receiver of one daemon's transfers.

    :param on_arrival: called in a connection's thread with each complete transfer that is still expected.
    :param on_refusal: called with the reason why data of a transfer cannot be accepted. Nobody will send them again.
    :param patience: timeout in seconds for each piece of a message, and for the announcement of a message that arrived
        first.
    """

    def __init__(
        self,
        on_arrival: Callable[[Arrival], None],
        on_refusal: Callable[[GangError], None],
        patience: float,
    ) -> None:
        self._on_arrival, self._on_refusal, self._patience = on_arrival, on_refusal, patience
        self._changed = threading.Condition()
        self._incoming: dict[int, _Incoming] = {}
        #: Cancelled transfers. Their messages may still arrive, and a connection's bytes must be read.
        self._cancelled: dict[int, Expect] = {}
        self._delivering: set[int] = set()
        self._sockets: set[socket.socket] = set()
        self._is_closed = False

    def expect(self, expected: Expect) -> None:
        """Announce a transfer."""
        with self._changed:
            self._incoming[expected.transfer] = _Incoming(expected)
            self._changed.notify_all()

    def cancel(self, transfer: int) -> None:
        """Stop expecting the transfer, and discard what has arrived of it."""
        with self._changed:
            incoming = self._incoming.pop(transfer, None)
            if incoming is not None:
                self._cancelled[transfer] = incoming.expected
                self._changed.notify_all()

    def fence(self, transfers: Collection[int], sender: str) -> None:
        """Cancel the transfers, and wait until ``on_arrival`` has returned for any that had arrived.

        :param sender: who sent them, for people.
        :raises DeadlineError: ``on_arrival`` has not returned in time.
        """
        with self._changed:
            for transfer in transfers:
                self.cancel(transfer)
            if not self._changed.wait_for(lambda: self._delivering.isdisjoint(transfers), self._patience):
                raise DeadlineError(
                    f"data from {sender} was not processed within {self._patience:g} s; set {TIMEOUT_KEY}"
                )

    def serve(self, sock: socket.socket, rank: int) -> None:
        """Receive from an authenticated connection of ``rank`` until it ends. Takes ownership of the socket."""
        header: Header | None = None
        with self._changed:
            self._sockets.add(sock)
        try:
            while not self._is_closed:
                header = None
                await_message(sock)
                header, crc = Header.unpack(recv_exact(sock, HEADER_BYTES, time.monotonic() + self._patience))
                self._receive(sock, header, crc)
        except ProtocolError as exc:
            subject = "" if header is None else f"{header.description}: "
            self._on_refusal(ProtocolError(f"refused data from rank {rank}: {subject}{exc.message}", rank=rank))
        except (SparkdlCommError, OSError) as exc:
            _log.info("data connection of rank %d ended: %s", rank, exc)
            if header is not None and self._is_still_expected(header.id):
                self._on_refusal(GangError(f"rank {rank} sent only part of {header.description}: {exc}", rank=rank))
        finally:
            with self._changed:
                self._sockets.discard(sock)
            sock.close()

    def sockets(self) -> list[socket.socket]:
        with self._changed:
            return list(self._sockets)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._incoming.clear()
            self._changed.notify_all()
            for sock in self._sockets:
                hang_up(sock)

    def _receive(self, sock: socket.socket, header: Header, crc: int) -> None:
        incoming = self._await_expected(header)
        with self._changed:
            view = incoming.values.view(np.uint8).data[header.offset : header.offset + header.length]
        for start in range(0, len(view), _PIECE_BYTES):
            recv_into(sock, view[start : start + _PIECE_BYTES], time.monotonic() + self._patience)
        if zlib.crc32(view) != crc:
            raise ProtocolError("the checksum of its bytes does not match")
        with self._changed:
            incoming.missing_bytes -= header.length
            if incoming.missing_bytes or self._incoming.pop(header.id, None) is not incoming:
                return
            self._delivering.add(header.id)
        try:
            self._on_arrival(Arrival(incoming.expected, incoming.values, header))
        finally:
            with self._changed:
                self._delivering.discard(header.id)
                self._changed.notify_all()

    def _is_still_expected(self, transfer: int) -> bool:
        """Return True if the transfer is still expected after a while, which means that its sender is not lost."""
        with self._changed:
            return not self._changed.wait_for(
                lambda: self._is_closed or transfer not in self._incoming, _SETTLED_SECONDS
            )

    def _await_expected(self, header: Header) -> _Incoming:
        """Return the announced transfer of a message, and check the header. The announcement may arrive after the
        message."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or header.id in self._incoming or header.id in self._cancelled, self._patience
            )
            incoming = self._incoming.get(header.id)
            if header.id in self._cancelled:
                incoming = _Incoming(self._cancelled[header.id])
        if incoming is None:
            raise ProtocolError("the scheduler has not announced this transfer")
        expected = incoming.expected
        kind = Kind(expected.content)
        if header.kind is not kind or header.length > incoming.missing_bytes or header.offset % 4:
            raise ProtocolError(f"expected {kind.name} of {expected.elements} elements, but got {header}")
        if header.offset + header.length > 4 * expected.elements:
            raise ProtocolError(f"out of range for {expected.elements} elements: {header}")
        return incoming
