"""Connections of the socket engine: one per peer and rail, from NIC to NIC, authenticated, made on demand.

Only the engine's thread uses a :class:`Connection` and the :class:`RailQueue` that connections share.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from sparkdl_comm.collectives.engine.job import HEADER, Channel, Job
from sparkdl_comm.collectives.plan import StepKind
from sparkdl_comm.errors import DeadlineError, GangError
from sparkdl_comm.gang.frames import TIMEOUT_KEY, count_unacknowledged_bytes, hang_up
from sparkdl_comm.gang.gang import Gang


class PeerSockets:
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
    """Connection to a peer over a rail (``channel``). The socket is authenticated and non-blocking."""

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
    def jobs_to_receive(self) -> set[Job]:
        """Jobs with messages that this connection still has to receive."""
        return {job for job, _ in self._in}

    def send(self, now: float) -> Iterable[Message]:
        """Send as much of the first message as the kernel takes. The message must be ready. Yield it when it is
        complete.

        :raises OSError: the peer is gone.
        """
        job, index = self._out[0]
        if not self._sending:
            step = job.prepared.steps[index]
            self._sending = [memoryview(job.header(index)), job.memory.bytes(step.start, step.stop)]
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
            yield job, index

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
            if (
                self._header_bytes == HEADER.size
                and self._content_bytes == (step.stop - step.start) * job.memory.itemsize
            ):
                self._in.popleft()
                self._header_bytes = self._content_bytes = 0
                yield job, index

    def _receive_some(self, job: Job, index: int) -> bool:
        """Receive into the available room. Return False if it was not filled, so nothing more is there for now."""
        if self._header_bytes < HEADER.size:
            self._header_bytes += self._read(self._header[self._header_bytes :])
            if self._header_bytes == HEADER.size:
                self._check(job, index)
            return self._header_bytes == HEADER.size
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


def _drop_sent(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """Return the buffers without their first ``sent`` bytes."""
    rest = []
    for buffer in buffers:
        if sent < len(buffer):
            rest.append(buffer[sent:])
        sent = max(0, sent - len(buffer))
    return rest
