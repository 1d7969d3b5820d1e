"""Connections of the socket engine. Only the engine's thread uses them, and the :class:`RailQueue` that they share."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from sparkdl_comm.collectives.engine.job import HEADER, Channel, Job
from sparkdl_comm.collectives.engine.peer_sockets import Link, MemoryLink
from sparkdl_comm.collectives.plan import StepKind
from sparkdl_comm.errors import GangError
from sparkdl_comm.gang.frames import count_unacknowledged_bytes

#: Seconds without progress after which the next message is sent. Longer than the round trip of a packet through full
#: queues.
PATIENCE_SECONDS = 0.1


class RailQueue:
    """Connections of one rank over one rail. One message at a time leaves a NIC, in the order of the rank's program.

    If all messages were sent at once, they would share the NIC, and each would take as long as all of them. The receiver
    of the first one would continue late, and several senders would meet at one receiver's port. Plans are made for the
    order of the program, and the cost model assumes it.

    A peer that is late in its program takes no bytes. After :data:`PATIENCE_SECONDS` without progress, the messages
    after it are sent, too.
    """

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        #: Connections that may send now, or when the kernel takes more bytes. :meth:`pick_connection` updates them.
        self.candidates: list[Connection] = []
        #: True if more ready connections wait behind the last one of :attr:`candidates`, whose send buffer is full.
        self.is_held_up = False

    def pick_connection(self, now: float) -> Connection | None:
        """Update :attr:`candidates`, and return the connection to send over now; None if there is none."""
        ready = sorted((c for c in self.connections if c.wants_to_send), key=attrgetter("send_order"))
        self.candidates = []
        for connection in ready:
            self.candidates.append(connection)
            last = len(self.candidates) == len(ready)
            if not connection.is_full:
                self.is_held_up = False
                return connection
            if last or not connection.is_stalled(now, PATIENCE_SECONDS):
                break
        self.is_held_up = len(self.candidates) < len(ready)
        return None


#: Bytes to receive before they are combined: few enough to stay in the cache, enough to make system calls cheap.
_CHUNK_BYTES = 256 * 1024
#: Bytes that one connection may receive before another one has its turn.
_MAX_BYTES_PER_TURN = 1024 * 1024
#: Stands for a number of bytes that the kernel has not been asked for.
_UNKNOWN_BYTES = -1
#: Unsent bytes that the kernel may hold. With more, the end of a message would share the NIC with the next messages, and
#: urgent messages would queue behind it. With much less, the NIC would wait for this process.
_MAX_UNSENT_BYTES = 64 * 1024

Message = tuple[Job, int]


class Connection:
    """Connection to a peer over a rail (``channel``). The socket is authenticated and non-blocking.

    ``queue``: queue that this connection shares with the others of its NIC. The engine sets it.
    """

    queue: RailQueue

    def __init__(self, channel: Channel, sock: socket.socket) -> None:
        self.channel, self.sock = channel, sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)
        self.moved_bytes = 0  # bytes sent and received, headers too
        self._out: deque[Message] = deque()
        self._in: deque[Message] = deque()
        self._sending: list[memoryview] = []  # unsent rest of the first message
        self.is_full = False  # the kernel takes no more bytes; the engine resets this when there is room
        self._unacknowledged_bytes, self._unchanged_since = 0, 0.0  # at the last check
        self._header = memoryview(bytearray(HEADER.size))
        self._header_bytes = 0  # received bytes of the first message's header
        self._content_bytes = 0  # bytes of the first message that are stored or combined
        self._chunk = bytearray(0)
        self._chunk_bytes = 0  # bytes in the chunk that are not combined yet

    def add(self, job: Job, index: int) -> None:
        """Queue step ``index`` of a job, behind all steps that were added before."""
        sends = job.prepared.steps[index].kind is StepKind.SEND
        (self._out if sends else self._in).append((job, index))

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out) and self._out[0][0].is_ready(self._out[0][1])

    @property
    def send_order(self) -> tuple[bool, int, int]:
        """Sort key of the first message to send: a message under way is first, then program order decides."""
        job, index = self._out[0]
        return not self._sending, job.number, index

    def is_stalled(self, now: float, patience_seconds: float) -> bool:
        """Return whether the peer has taken nothing for ``patience_seconds`` seconds. Call it repeatedly while the connection
        is full.
        """
        unacknowledged_bytes = count_unacknowledged_bytes(self.sock)
        if unacknowledged_bytes != self._unacknowledged_bytes:
            self._unacknowledged_bytes, self._unchanged_since = unacknowledged_bytes, now
        return now - self._unchanged_since >= patience_seconds

    @property
    def wants_to_receive(self) -> bool:
        return bool(self._in) and self._in[0][0].is_ready(self._in[0][1])

    @property
    def awaited_jobs(self) -> set[Job]:
        """Jobs for which this connection waits for bytes of the peer."""
        return {job for job, _ in self._in}

    def sockets(self) -> list[socket.socket]:
        return [self.sock]

    def send(self, now: float) -> Iterable[Message]:
        """Send as much of the first message as the kernel takes. The message must be ready. Yield it when it is
        complete.

        :raises OSError: the peer is gone.
        """
        job, index = self._out[0]
        if not self._sending:
            self._sending = [memoryview(job.header(index)), self._content(job, index)]
        try:
            sent = self.sock.sendmsg(self._sending)
        except (BlockingIOError, InterruptedError):
            self.is_full = True
            self._unacknowledged_bytes, self._unchanged_since = _UNKNOWN_BYTES, now
            return
        self.moved_bytes += sent
        self._sending = _drop_sent(self._sending, sent)
        if not self._sending:
            self._out.popleft()
            yield from self._complete_sent(job, index)

    def receive(self) -> Iterable[Message]:
        """Receive the bytes that are there, up to a limit, and yield each step that they complete.

        :raises OSError: the peer is gone.
        :raises GangError: the message is not the expected one.
        """
        limit = self.moved_bytes + _MAX_BYTES_PER_TURN
        more = True
        while more and self.moved_bytes < limit and self.wants_to_receive:
            job, index = self._in[0]
            try:
                more = self._receive_some(job, index)
            except (BlockingIOError, InterruptedError):
                return
            step = job.prepared.steps[index]
            is_complete = self._content_bytes == (step.stop - step.start) * job.memory.itemsize
            if self._header_bytes == HEADER.size and is_complete:
                self._in.popleft()
                self._header_bytes = self._content_bytes = 0
                yield job, index

    def _receive_some(self, job: Job, index: int) -> bool:
        """Receive the next bytes of the first message. Return False if nothing more is there for now."""
        if self._header_bytes < HEADER.size:
            self._header_bytes += self._read(self._header[self._header_bytes :])
            if self._header_bytes == HEADER.size:
                self._check(job, index)
            return self._header_bytes == HEADER.size
        return self._receive_content(job, index)

    def _content(self, job: Job, index: int) -> memoryview:
        """Return the bytes to send after the header of step ``index``."""
        step = job.prepared.steps[index]
        return job.memory.bytes(step.start, step.stop)

    def _complete_sent(self, job: Job, index: int) -> Iterable[Message]:
        """Return the steps that are complete because the kernel has taken the message of step ``index``."""
        return [(job, index)]

    def _receive_content(self, job: Job, index: int) -> bool:
        """Receive what follows the header of step ``index``. Return False if nothing more is there for now."""
        step, memory = job.prepared.steps[index], job.memory
        if step.kind is StepKind.RECEIVE:
            room = memory.bytes(step.start, step.stop)[self._content_bytes :]
            got = self._read(room)
            self._content_bytes += got
            return got == len(room)
        left = (step.stop - step.start) * memory.itemsize - self._content_bytes - self._chunk_bytes
        if not self._chunk:
            self._chunk = bytearray(_CHUNK_BYTES)
        room = memoryview(self._chunk)[self._chunk_bytes : min(_CHUNK_BYTES, self._chunk_bytes + left)]
        got = self._read(room)
        self._chunk_bytes += got
        whole = self._chunk_bytes - self._chunk_bytes % memory.itemsize
        memory.combine(step.start + self._content_bytes // memory.itemsize, self._chunk, whole)
        self._content_bytes += whole
        self._chunk_bytes -= whole
        if self._chunk_bytes:
            self._chunk[: self._chunk_bytes] = self._chunk[whole : whole + self._chunk_bytes]
        return got == len(room)

    def _read(self, view: memoryview) -> int:
        got = self.sock.recv_into(view)
        if not got:
            raise ConnectionResetError("the peer closed the connection")
        self.moved_bytes += got
        return got

    def _check(self, job: Job, index: int) -> None:
        expected, found = HEADER.unpack(job.header(index)), HEADER.unpack(self._header)
        if expected != found:
            peer, rail = self.channel
            raise GangError(
                f"rank {job.prepared.rank} expected {expected[2]} bytes of {job.name} from rank {peer} over rail {rail}, but"
                f" got {found[2]} bytes of collective number {found[0]}. All ranks must call the same collectives in the"
                " same order, with tensors of the same length and dtype"
            )


#: Bytes from which on a message is read from the sender's memory. A smaller one takes less time on the socket.
_LEAST_MEMORY_BYTES = 512 * 1024
#: Address of a message, and a last byte, which the receiver takes when it has read the message.
_ADDRESS = struct.Struct("!Qx")


class MemoryConnection(Connection):
    """Connection to a peer on the same host, which reads large messages from the sender's memory.

    On the socket, such a message is its header and its address. A turn has a limit of bytes, and the selector calls a
    connection again only if its socket has bytes. So the receiver leaves the last byte in the socket until it has read
    the whole message. The sender's step is complete when the receiver has confirmed the message.
    """

    def __init__(self, channel: Channel, sock: socket.socket, link: MemoryLink) -> None:
        super().__init__(channel, sock)
        self.confirmations, self._peer_memory = link.confirmations, link.memory
        self._unconfirmed: deque[Message] = deque()
        self._address = memoryview(bytearray(_ADDRESS.size))
        self._address_bytes = 0  # received bytes of the first message's address
        self._copied_bytes = 0  # bytes of the first message that were read from the peer's memory

    @property
    def awaits_confirmations(self) -> bool:
        return bool(self._unconfirmed)

    @property
    def awaited_jobs(self) -> set[Job]:
        return super().awaited_jobs | {job for job, _ in self._unconfirmed}

    def sockets(self) -> list[socket.socket]:
        return [self.sock, self.confirmations]

    def receive_confirmations(self) -> Iterable[Message]:
        """Receive the confirmations that are there, and yield the steps that they complete.

        :raises OSError: the peer is gone.
        :raises GangError: the peer confirms what was not sent.
        """
        try:
            count = len(self.confirmations.recv(4096))
        except (BlockingIOError, InterruptedError):
            return
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        if count > len(self._unconfirmed):
            sent = len(self._unconfirmed)
            raise GangError(f"rank {self.channel[0]} confirmed {count} messages, but only {sent} were sent")
        self.moved_bytes += count
        for _ in range(count):
            yield self._unconfirmed.popleft()

    def _content(self, job: Job, index: int) -> memoryview:
        if _size(job, index) < _LEAST_MEMORY_BYTES:
            return super()._content(job, index)
        return memoryview(_ADDRESS.pack(job.memory.address(job.prepared.steps[index].start)))

    def _complete_sent(self, job: Job, index: int) -> Iterable[Message]:
        if _size(job, index) < _LEAST_MEMORY_BYTES:
            return super()._complete_sent(job, index)
        self._unconfirmed.append((job, index))
        return []

    def _receive_content(self, job: Job, index: int) -> bool:
        size = _size(job, index)
        if size < _LEAST_MEMORY_BYTES:
            return super()._receive_content(job, index)
        without_last = _ADDRESS.size - 1
        if self._address_bytes < without_last:
            self._address_bytes += self._read(self._address[self._address_bytes : without_last])
        elif self._copied_bytes < size:
            self._copy_some(job, index, size)
        else:
            self._read(self._address[without_last:])
            self._confirm()
            self._content_bytes, self._address_bytes, self._copied_bytes = size, 0, 0
        return True

    def _copy_some(self, job: Job, index: int, size: int) -> None:
        """Copy the next bytes of the first message, and combine them if the step says so."""
        step, memory = job.prepared.steps[index], job.memory
        (address,) = _ADDRESS.unpack(self._address)
        source = address + self._copied_bytes
        start = step.start + self._copied_bytes // memory.itemsize
        if step.kind is StepKind.RECEIVE:
            count = min(_MAX_BYTES_PER_TURN, size - self._copied_bytes)
            self._peer_memory.read(source, memory.address(start), count)
        else:
            count = min(_CHUNK_BYTES, size - self._copied_bytes)
            if not self._chunk:
                self._chunk = bytearray(_CHUNK_BYTES)
            self._peer_memory.read(source, ctypes.addressof(ctypes.c_char.from_buffer(self._chunk)), count)
            memory.combine(start, self._chunk, count)
        self._copied_bytes += count
        self.moved_bytes += count

    def _confirm(self) -> None:
        try:
            self.confirmations.send(b"\1")
        except BlockingIOError as exc:
            raise ConnectionAbortedError("the peer takes no confirmations") from exc


def make_connection(channel: Channel, link: Link) -> Connection:
    """Return the connection over a link."""
    return Connection(channel, link.sock) if link.memory is None else MemoryConnection(channel, link.sock, link.memory)


def _size(job: Job, index: int) -> int:
    """Return the bytes of the message of step ``index``."""
    step = job.prepared.steps[index]
    return (step.stop - step.start) * job.memory.itemsize


def _drop_sent(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """Return the buffers without their first ``sent`` bytes."""
    rest = []
    for buffer in buffers:
        if sent < len(buffer):
            rest.append(buffer[sent:])
        sent = max(0, sent - len(buffer))
    return rest
