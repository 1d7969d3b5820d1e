"""Sender of a daemon: sends each transfer over all rails at once, an equal share on each, at the rates that the
scheduler reserved.

A transfer has one thread per rail while it lasts. A connection to each receiver and rail is made when first needed. It
carries one message at a time. Times in a schedule count from its creation. The receiver of a schedule counts them from
its arrival, so clocks of hosts need not agree.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkdl_comm.errors import DeadlineError, GangError, InputError, SparkdlCommError
from sparkdl_comm.fabric.core.messages import Piece
from sparkdl_comm.fabric.transport import Header
from sparkdl_comm.gang.frames import Clock, await_ready, count_unacknowledged_bytes, hang_up, send_all
from sparkdl_comm.gang.handshake import Address

#: Bytes of one send call.
CHUNK_BYTES = 64 * 1024
#: Bytes that the kernel may hold unsent. With more, the link's speed would show late, and the kernel would do the
#: pacing.
_MAX_UNSENT_BYTES = 64 * 1024
#: Seconds after which a waiting thread checks the schedule again, as it may have changed.
_RECHECK_SECONDS = 0.05
#: Seconds between checks for the arrival of a message's last bytes, and seconds after which the checks stop.
_ACK_POLL_SECONDS, _ACK_WAIT_SECONDS = 0.002, 1.0
#: ``dial(address, rail, deadline)``: an authenticated connection to a daemon.
Dial = Callable[[Address, int, float], socket.socket]


class Pacing:
    """Schedule of one transfer: slices in order, without overlap.

    After the last slice there is no limit: the rest is late, and only the network limits it. An empty schedule sets no
    limit.

    :raises InputError: slices out of order, or values that are not finite.
    """

    def __init__(self, slices: Sequence[Piece], begin: float, sent_bytes: float = 0.0) -> None:
        """``begin``: time on the caller's clock from which the slices count. ``sent_bytes``: bytes sent before."""
        end = 0.0
        for piece in slices:
            if not (end <= piece.start <= piece.end < math.inf and 0 <= piece.rate < math.inf):
                raise InputError(f"invalid {piece}: it must begin at {end:g} s or later, with finite times and rate")
            end = piece.end
        self._slices, self._begin, self._end, self._sent_bytes = slices, begin, begin + end, sent_bytes

    def earliest_time(self, count: float) -> float:
        """Return the earliest time by which ``count`` bytes may be sent."""
        allowed = self._sent_bytes
        if count <= allowed:
            return self._begin
        for piece in self._slices:
            room = piece.rate * (piece.end - piece.start)
            if allowed + room >= count and piece.rate:
                return self._begin + piece.start + (count - allowed) / piece.rate
            allowed += room
        return self._end


class TransferProgress(NamedTuple):
    """Progress of a transfer.

    - ``sent_bytes``: bytes that have arrived at the receiver's kernel.
    - ``held_seconds``: seconds, summed over the rails, in which bytes were due and the kernel did not accept them.
    - ``first_due``: when the first bytes were due; infinity before.
    - ``last_measured``: time of the last measurement; 0 before.
    """

    sent_bytes: int = 0
    held_seconds: float = 0.0
    first_due: float = math.inf
    last_measured: float = 0.0


@dataclass
class OutgoingTransfer:
    """Transfer being sent."""

    header: Header
    data: memoryview
    addresses: Sequence[Address]
    pacing: Pacing
    cancelled: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _progress: TransferProgress = TransferProgress()

    def repace(self, slices: Sequence[Piece], now: float) -> None:
        """Pace the rest of the transfer by these slices, which count from ``now``."""
        self.pacing = Pacing(slices, now, self.progress.sent_bytes)

    def record(self, sent: int, begin: float, end: float) -> None:
        """Record that ``sent`` more bytes have arrived by ``end``, and that the bytes sent meanwhile were due at
        ``begin``."""
        with self._lock:
            before = self._progress
            self._progress = TransferProgress(
                before.sent_bytes + sent,
                before.held_seconds + (end - begin),
                min(before.first_due, begin),
                max(before.last_measured, end),
            )

    @property
    def progress(self) -> TransferProgress:
        with self._lock:
            return self._progress


@dataclass
class _Connection:
    """Connection to one receiver over one rail. Its user holds the lock.

    ``sock``: None until the connection is needed, and after a failure.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    sock: socket.socket | None = None


class Sender:
    """Sender of one daemon's transfers.

    :param patience: seconds for which a receiver may accept nothing.
    :param pause: ``pause(event, seconds)`` waits for the event, at most for so long.
    """

    def __init__(
        self,
        dial: Dial,
        patience: float,
        clock: Clock = time.monotonic,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._dial, self._patience, self._clock, self._pause = dial, patience, clock, pause
        self._connections: dict[tuple[Address, int], _Connection] = {}
        self._lock = threading.Lock()
        self._active: dict[int, OutgoingTransfer] = {}
        self._ended: list[OutgoingTransfer] = []  # since the last call of take_active()
        self._is_closed = False

    def send(self, transfer: OutgoingTransfer) -> None:
        """Send the transfer and return when all of it has left, or when it was cancelled before it began.

        :raises GangError: the receiver is unreachable, lost, or accepts nothing in time; or the sender was closed.
        """
        parts = self._split(transfer)
        with self._lock:
            if self._is_closed:
                raise GangError("the daemon was closed")
            self._active[transfer.header.id] = transfer
        try:
            if len(parts) == 1:
                self._send_part(transfer, *parts[0])
                return
            with ThreadPoolExecutor(len(parts)) as pool:
                futures = [pool.submit(self._send_part, transfer, *part) for part in parts]
                wait(futures)
            for future in futures:
                future.result()
        finally:
            with self._lock:
                self._ended.append(self._active.pop(transfer.header.id))
            transfer.data = memoryview(b"")  # the transfer may stay listed for long: free its memory

    def take_active(self) -> list[OutgoingTransfer]:
        """Return the transfers being sent, and the transfers that have ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
            return [*self._active.values(), *ended]

    def find(self, transfer: int) -> OutgoingTransfer | None:
        with self._lock:
            return self._active.get(transfer)

    def sockets(self) -> list[socket.socket]:
        with self._lock:
            return [c.sock for c in self._connections.values() if c.sock is not None]

    def close(self) -> None:
        """Fail all transfers being sent."""
        with self._lock:
            self._is_closed = True
            for transfer in self._active.values():
                transfer.cancelled.set()
            connections = list(self._connections.values())
        for connection in connections:
            if connection.lock.acquire(blocking=False):
                if connection.sock is not None:
                    connection.sock.close()
                    connection.sock = None
                connection.lock.release()
            elif connection.sock is not None:
                hang_up(connection.sock)
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits to send

    # ---- private

    def _split(self, transfer: OutgoingTransfer) -> list[tuple[int, int, int]]:
        """Return the rails to use with the byte range, start and stop, that each carries. Ranges are whole float32
        elements.

        A rail without bytes sends no message. Its empty message could arrive after the receiver had completed and
        forgotten the transfer.
        """
        rails, elements = len(transfer.addresses), len(transfer.data) // 4
        bounds = [4 * (elements * rail // rails) for rail in range(rails + 1)]
        parts = [
            (rail, *part_bounds)
            for rail, part_bounds in enumerate(zip(bounds, bounds[1:], strict=False))
            if part_bounds[0] < part_bounds[1]
        ]
        return parts or [(0, 0, 0)]

    def _send_part(self, transfer: OutgoingTransfer, rail: int, start: int, stop: int) -> None:
        # Wait before taking the connection, so that transfers that begin earlier can use it.
        if not self._await_turn(transfer, 1.0):
            return
        connection = self._get_connection(transfer.addresses[rail], rail)
        data = transfer.data[start:stop]
        header = Header(**{**vars(transfer.header), "offset": start, "length": len(data)})
        with connection.lock:
            try:
                sock = self._open(connection, transfer.addresses[rail], rail)
                send_all(sock, header.pack(data), self._clock() + self._patience, self._clock)
                self._send_paced(sock, transfer, data, (stop - start) / max(1, len(transfer.data)))
            except (OSError, SparkdlCommError) as exc:
                if connection.sock is not None:
                    connection.sock.close()
                    connection.sock = None
                if isinstance(exc, GangError) and not isinstance(exc, DeadlineError):
                    raise
                address = ":".join(map(str, transfer.addresses[rail]))
                raise GangError(f"transfer {header.id} to {address} over rail {rail}: {exc}") from exc

    def _send_paced(self, sock: socket.socket, transfer: OutgoingTransfer, data: memoryview, share: float) -> None:
        sent_bytes = arrived = 0
        while sent_bytes < len(data):
            piece = data[sent_bytes : sent_bytes + CHUNK_BYTES]
            self._await_turn(transfer, (sent_bytes + len(piece)) / share)
            if self._is_closed:
                raise GangError("the daemon was closed")
            begin = self._clock()
            # Poll before each piece: send() alone accepts what fits into the kernel's buffer, not what leaves.
            await_ready(
                sock, select.POLLOUT, begin + self._patience, self._clock, f"sending, {sent_bytes} of {len(data)} bytes"
            )
            send_all(sock, piece, begin + self._patience, self._clock)
            sent_bytes += len(piece)
            # Count acknowledged bytes. The kernel accepts the first bytes at once, however slow the link is.
            before, arrived = arrived, max(arrived, sent_bytes - count_unacknowledged_bytes(sock))
            transfer.record(arrived - before, begin, self._clock())
        # Wait for the last bytes. They still use the link, and the next transfer would seem slow.
        until = self._clock() + _ACK_WAIT_SECONDS
        while arrived < len(data) and (begin := self._clock()) < until and not self._is_closed:
            time.sleep(_ACK_POLL_SECONDS)
            before, arrived = arrived, max(arrived, sent_bytes - count_unacknowledged_bytes(sock))
            transfer.record(arrived - before, begin, self._clock())

    def _await_turn(self, transfer: OutgoingTransfer, count: float) -> bool:
        """Wait until ``count`` bytes of the transfer may have left. Return False if it was cancelled.

        A message that has begun is always sent to its end. Otherwise the connection would lose its framing.
        """
        while not transfer.cancelled.is_set():
            seconds = transfer.pacing.earliest_time(count) - self._clock()
            if seconds <= 0:
                return True
            self._pause(transfer.cancelled, min(seconds, _RECHECK_SECONDS))
        return False

    def _get_connection(self, address: Address, rail: int) -> _Connection:
        with self._lock:
            return self._connections.setdefault((address, rail), _Connection())

    def _open(self, connection: _Connection, address: Address, rail: int) -> socket.socket:
        if connection.sock is None:
            if self._is_closed:
                raise GangError("the daemon was closed")
            connection.sock = self._dial(address, rail, self._clock() + self._patience)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)
        return connection.sock
