"""One connection of the socket engine: the messages that wait to be sent over it, and those that it is to receive.

Not thread-safe: the engine's thread only.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable

from sparkdl_comm.collectives.engine.job import HEADER, Channel, Job
from sparkdl_comm.collectives.plan import Kind
from sparkdl_comm.errors import GangError
from sparkdl_comm.gang.frames import unacknowledged

#: Bytes that are received before they are combined: few enough to be in the cache still, and that many system calls are
#: no cost.
_CHUNK = 256 * 1024
#: Bytes that one connection may receive before it is another one's turn.
_TURN = 1024 * 1024
#: Not yet asked.
_UNKNOWN = -1
#: Bytes that the kernel may hold of a message that it has not sent yet. With more, the end of a message would share the NIC
#: with the next ones, and what is more urgent would come behind; with much less, the NIC would wait for this process.
_UNSENT = 64 * 1024

Message = tuple[Job, int]


class Connection:
    """``channel``: whom it leads to, over which rail. The socket is authenticated and non-blocking."""

    def __init__(self, channel: Channel, sock: socket.socket) -> None:
        self.channel, self.sock = channel, sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self.moved = 0  # bytes sent and received, headers too
        self._out: deque[Message] = deque()
        self._in: deque[Message] = deque()
        self._sending: list[memoryview] = []  # what is left of the first message
        self.is_full = False  # the kernel took no more of it; who waits for room says when there is some
        self._held, self._since = 0, 0.0  # bytes that the kernel held then, or later; when that changed last
        self._head = memoryview(bytearray(HEADER.size))
        self._headed = 0  # bytes of the first message's header that are there
        self._got = 0  # bytes of it that are there, or combined already
        self._chunk = bytearray(0)
        self._filled = 0  # bytes in the chunk that are not combined yet

    def add(self, job: Job, index: int) -> None:
        """The step is to be taken over this connection, after all others that were added."""
        sends = job.prepared.steps[index].kind is Kind.SEND
        (self._out if sends else self._in).append((job, index))

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out) and self._out[0][0].is_ready(self._out[0][1])

    @property
    def place(self) -> tuple[bool, int, int]:
        """Of the first message, among those to be sent: one that was begun is first, then the order of the program counts."""
        job, index = self._out[0]
        return not self._sending, job.number, index

    def is_stalled(self, now: float, patience: float) -> bool:
        """Full, and for ``patience`` seconds the peer has taken nothing; to be asked now and then."""
        held = unacknowledged(self.sock)
        if held != self._held:
            self._held, self._since = held, now
        return now - self._since >= patience

    @property
    def wants_to_receive(self) -> bool:
        return bool(self._in) and self._in[0][0].is_ready(self._in[0][1])

    @property
    def awaited(self) -> set[Job]:
        """Whose messages are to come over it."""
        return {job for job, _ in self._in}

    def send(self, now: float) -> Iterable[Message]:
        """Sends what the kernel takes of the first message, which is ready; yields it when it is done. OSError if the peer is
        gone."""
        job, index = self._out[0]
        if not self._sending:
            step = job.prepared.steps[index]
            self._sending = [memoryview(job.header(index)), job.memory.bytes(step.start, step.stop)]
        try:
            sent = self.sock.sendmsg(self._sending)
        except (BlockingIOError, InterruptedError):
            self.is_full = True
            self._held, self._since = _UNKNOWN, now
            return
        self.moved += sent
        self._sending = _rest(self._sending, sent)
        if not self._sending:
            self._out.popleft()
            yield job, index

    def receive(self) -> Iterable[Message]:
        """Receives what is there, up to a limit; yields each step that is done then.

        :raises OSError: the peer is gone.
        :raises GangError: the message is not the one that is expected.
        """
        limit = self.moved + _TURN
        more = True
        while more and self.moved < limit and self.wants_to_receive:
            job, index = self._in[0]
            try:
                more = self._receive_some(job, index)
            except (BlockingIOError, InterruptedError):
                return
            step = job.prepared.steps[index]
            if self._headed == HEADER.size and self._got == (step.stop - step.start) * job.memory.itemsize:
                self._in.popleft()
                self._headed = self._got = 0
                yield job, index

    def _receive_some(self, job: Job, index: int) -> bool:
        """Whether there was as much as there was room for: if not, there is no more for now."""
        if self._headed < HEADER.size:
            self._headed += self._read(self._head[self._headed :])
            if self._headed == HEADER.size:
                self._check(job, index)
            return self._headed == HEADER.size
        step, memory = job.prepared.steps[index], job.memory
        if step.kind is Kind.RECEIVE:
            room = memory.bytes(step.start, step.stop)[self._got :]
            got = self._read(room)
            self._got += got
            return got == len(room)
        left = (step.stop - step.start) * memory.itemsize - self._got - self._filled
        if not self._chunk:
            self._chunk = bytearray(_CHUNK)
        room = memoryview(self._chunk)[self._filled : min(_CHUNK, self._filled + left)]
        got = self._read(room)
        self._filled += got
        whole = self._filled - self._filled % memory.itemsize
        memory.combine(step.start + self._got // memory.itemsize, self._chunk, whole)
        self._got += whole
        self._filled -= whole
        if self._filled:
            self._chunk[: self._filled] = self._chunk[whole : whole + self._filled]
        return got == len(room)

    def _read(self, view: memoryview) -> int:
        got = self.sock.recv_into(view)
        if not got:
            raise ConnectionResetError("it closed the connection")
        self.moved += got
        return got

    def _check(self, job: Job, index: int) -> None:
        wanted, found = HEADER.unpack(job.header(index)), HEADER.unpack(self._head)
        if wanted != found:
            peer, rail = self.channel
            raise GangError(
                f"rank {job.prepared.rank} expected {wanted[2]} bytes of {job.name} from rank {peer} over rail {rail}, and"
                f" got {found[2]} bytes of collective number {found[0]}: all ranks must call the same collectives in the"
                " same order, with tensors of the same length and dtype"
            )


def _rest(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """What is left of them after the first ``sent`` bytes."""
    rest = []
    for buffer in buffers:
        if sent < len(buffer):
            rest.append(buffer[sent:])
        sent = max(0, sent - len(buffer))
    return rest
