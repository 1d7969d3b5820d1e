"""Socket engine: runs plans on CPU tensors, over one TCP connection per peer and rail.

Peers on the same host read large messages from the sender's memory, if the system allows it.

One thread per rank moves all bytes. It sends and receives over every connection that the kernel has room or bytes for,
so that all rails work at once. Received bytes go straight into the tensor. Bytes to combine are added chunk by chunk,
while the kernel receives the next chunk. Any number of collectives may be under way. Over each connection their
messages follow each other in the order of the starts, which must be the same on all ranks.

After any failure the engine is unusable, because the state of its connections is unknown.
"""

from __future__ import annotations

import functools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import torch

from sparkdl_comm.collectives.engine.connection import (
    PATIENCE_SECONDS,
    Connection,
    MemoryConnection,
    Message,
    RailQueue,
    make_connection,
)
from sparkdl_comm.collectives.engine.job import Channel, Job, SocketPlan
from sparkdl_comm.collectives.engine.peer_memory import OwnMemory
from sparkdl_comm.collectives.engine.peer_sockets import PeerSockets
from sparkdl_comm.collectives.plan import Plan, StepKind
from sparkdl_comm.errors import DeadlineError, GangError, InputError, RankLostError, SparkdlCommError
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.posted_work import PostedWork

#: Seconds between wake-ups of the thread while no collective is under way.
_IDLE_SECONDS = 60.0
#: Bytes to send over all connections together before receiving again.
_MAX_BYTES_PER_TURN = 1024 * 1024

_log = logging.getLogger(__name__)


class SocketEngine:
    """:class:`~sparkdl_comm.collectives.engine.Engine` of one rank. Any thread may call its methods.

    :param rank: this rank's number in the plans.
    :param sockets: source of the connections that a plan needs. The engine closes it.
    :param timeout: seconds for which a collective may make no progress.
    :param own_memory: memory of this process, if peers read it.
    """

    device = torch.device("cpu")

    def __init__(self, rank: int, sockets: PeerSockets, timeout: float, own_memory: OwnMemory | None = None) -> None:
        self.rank = rank
        self._own_memory = own_memory or OwnMemory()
        self._sockets, self._timeout = sockets, timeout
        self._next_number = 0
        self._connecting = threading.Lock()
        self._starting = threading.Lock()  # collectives begin in the order of their numbers, or not at all
        self._connections: dict[Channel, Connection] = {}
        # By rail, or by channel if the connection uses no NIC. Only the engine's thread uses it.
        self._queues: dict[int | Channel, RailQueue] = {}
        self._jobs: list[Job] = []  # under way, in order of their numbers; only the engine's thread uses it
        self._last_progress = 0.0  # time when bytes moved last, or when there was nothing to move
        self._posted = PostedWork()
        self._error: SparkdlCommError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._posted.wake, selectors.EVENT_READ)
        self._registered: dict[socket.socket, int] = {}
        self._thread = threading.Thread(target=self._run, name=f"sparkdl-collectives-{rank}", daemon=True)
        self._thread.start()

    def prepare(self, plan: Plan) -> SocketPlan:
        prepared = SocketPlan.of(plan, self.rank)
        with self._connecting:
            missing = prepared.channels - self._connections.keys()
            links = self._sockets.connect(sorted(missing)) if missing else {}
            connections = {channel: make_connection(channel, link) for channel, link in links.items()}
            with self._starting:
                error = self._error  # a broken engine would never close the new connections
                if error is None:
                    self._connections |= connections
            if error is not None:
                for link in links.values():
                    link.close()
                raise error
            self._posted.post(lambda: self._add_connections(connections))
        return prepared

    def start(self, prepared: SocketPlan, tensor: torch.Tensor, op: str = "sum") -> Job:
        if tensor.numel() != prepared.plan.collective.count:
            raise InputError(f"{prepared.plan}: the tensor has {tensor.numel()} elements")
        with self._starting:
            if self._error is not None:
                raise self._error
            job = Job(self._next_number, prepared, tensor, op, self._cancel)
            self._next_number += 1
            self._posted.post(lambda: self._begin(job))
        return job

    def abort(self, error: SparkdlCommError) -> None:
        self._own_memory.clear_stamp()
        self._posted.post(lambda: self._fail(error))

    def close(self) -> None:
        self.abort(GangError(f"rank {self.rank} closed its collectives"))
        if threading.current_thread() is not self._thread:
            self._thread.join(self._timeout)
        self._sockets.close()

    def sockets(self) -> list[socket.socket]:
        """Return all open sockets, for a forked child to close."""
        return [*(sock for c in self._connections.values() for sock in c.sockets()), *self._posted.sockets()]

    def _cancel(self, job: Job) -> None:
        def cancel() -> None:
            if job in self._jobs:
                self._fail(GangError(f"rank {self.rank} cancelled {job.name}"))

        self._posted.post(cancel)

    # ---- the engine's thread

    def _run(self) -> None:
        try:
            while self._error is None:
                held_up = [queue for queue in self._queues.values() if queue.is_held_up]
                for key, events in self._selector.select(self._seconds_to_wait(bool(held_up))):
                    if key.data is None:
                        self._posted.drain()
                    else:
                        handle, connection = key.data
                        handle(connection, events)
                self._posted.run()
                if held_up:
                    self._send(held_up)
                self._check_deadline()
        except Exception as exc:  # noqa: BLE001 - threads that wait for a collective must get an error
            _log.exception("the collectives' thread of rank %d failed", self.rank)
            self._fail(GangError(f"the collectives' thread of rank {self.rank} failed: {exc!r}"))
        finally:
            self._fail(GangError(f"rank {self.rank} closed its collectives"))
            self._posted.run()
            self._selector.close()
            self._posted.close()

    def _seconds_to_wait(self, held_up: bool) -> float:
        """Return the seconds until the thread must act even without an event. ``held_up``: a queue is held up."""
        if not self._jobs:
            return _IDLE_SECONDS
        left = max(0.0, self._last_progress + self._timeout - time.monotonic())
        return min(left, PATIENCE_SECONDS / 4) if held_up else left

    def _add_connections(self, connections: Mapping[Channel, Connection]) -> None:
        for channel, connection in connections.items():
            key: int | Channel = channel if isinstance(connection, MemoryConnection) else channel[1]
            connection.queue = self._queues.setdefault(key, RailQueue())
            connection.queue.connections.append(connection)

    def _begin(self, job: Job) -> None:
        if self._error is not None:
            job.set_error(self._error)
            return
        if not self._jobs:
            self._last_progress = time.monotonic()
        self._jobs.append(job)
        for index, step in enumerate(job.prepared.steps):
            self._connections[step.peer, step.rail].add(job, index)
        for channel in job.prepared.channels:
            self._watch(self._connections[channel])
        self._send(self._queues.values())
        self._end_if_complete(job)

    def _handle_events(self, connection: Connection, events: int) -> None:
        """Send and receive over the connection, then send the messages that this made ready over other connections."""
        touched = set()
        if events & selectors.EVENT_WRITE:
            connection.is_full = False
            touched.add(connection.queue)
        if events & selectors.EVENT_READ:
            touched |= self._move_bytes(connection, connection.receive)
        if touched:
            self._send(touched)

    def _handle_confirmations(self, connection: MemoryConnection, _events: int) -> None:
        self._send(self._move_bytes(connection, connection.receive_confirmations))

    def _send(self, queues: Iterable[RailQueue]) -> None:
        """Send from each of the queues, and from every queue in which that makes messages ready."""
        pending = deque(queues)
        sent = 0
        while pending and self._error is None:
            queue, now = pending.popleft(), time.monotonic()
            before = queue.candidates
            connection = queue.pick_connection(now)
            if connection is not None and sent < _MAX_BYTES_PER_TURN:
                sent -= connection.moved_bytes
                pending += self._move_bytes(connection, functools.partial(connection.send, now)) | {queue}
                sent += connection.moved_bytes
            for changed in {*before, *queue.candidates}:
                self._watch(changed)

    def _move_bytes(self, connection: Connection, steps: Callable[[], Iterable[Message]]) -> set[RailQueue]:
        """Send or receive over the connection, and start what the completed messages allow.

        A failure ends the engine.

        :param steps: sends or receives, and returns the completed messages.
        :return: queues from which more messages can be sent now.
        """
        if self._error is not None:
            return set()  # the user may have the tensors again
        before = connection.moved_bytes
        try:
            done = list(steps())
        except SparkdlCommError as exc:
            self._fail(exc)
            return set()
        except OSError as exc:
            self._fail(self._peer_lost(connection, exc))
            return set()
        if connection.moved_bytes > before:
            self._last_progress = time.monotonic()
        touched = set()
        for job, index in done:
            for follower in job.complete(index):
                step = job.prepared.steps[follower]
                next_connection = self._connections[step.peer, step.rail]
                if step.kind is StepKind.SEND:
                    touched.add(next_connection.queue)
                else:
                    self._watch(next_connection)
            self._end_if_complete(job)
        self._watch(connection)
        return touched

    def _watch(self, connection: Connection) -> None:
        """Register the events that the connection waits for with the selector. Do nothing if a failure has closed it."""
        if self._error is not None:
            return
        wanted = selectors.EVENT_READ if connection.wants_to_receive else 0
        wanted |= selectors.EVENT_WRITE if connection in connection.queue.candidates else 0
        self._register(connection.sock, wanted, (self._handle_events, connection))
        if isinstance(connection, MemoryConnection):
            wanted = selectors.EVENT_READ if connection.awaits_confirmations else 0
            self._register(connection.confirmations, wanted, (self._handle_confirmations, connection))

    def _register(self, sock: socket.socket, wanted: int, handler: tuple[Callable[..., None], Connection]) -> None:
        """Let the selector report the events ``wanted`` of a socket, perhaps none, to ``handler``."""
        before = self._registered.get(sock, 0)
        if wanted == before:
            return
        if not before:
            self._selector.register(sock, wanted, handler)
        elif wanted:
            self._selector.modify(sock, wanted, handler)
        else:
            self._selector.unregister(sock)
        self._registered[sock] = wanted

    def _end_if_complete(self, job: Job) -> None:
        if job.is_complete and job in self._jobs:
            self._jobs.remove(job)
            job.finish()

    def _check_deadline(self) -> None:
        if not self._jobs or time.monotonic() < self._last_progress + self._timeout:
            return
        job = self._jobs[0]
        waiting = sorted(c.channel for c in self._connections.values() if job in c.awaited_jobs)
        peers = ", ".join(f"rank {peer} over rail {rail}" for peer, rail in waiting) or "room to send"
        self._fail(
            DeadlineError(
                f"rank {self.rank}: {job.name} stood still for {self._timeout:g} s, waiting for {peers}. Increase"
                f" {TIMEOUT_KEY} if a rank needs longer than that for a step",
                phase="collective",
            )
        )

    def _peer_lost(self, connection: Connection, exc: OSError) -> RankLostError:
        peer, rail = connection.channel
        names = ", ".join(job.name for job in self._jobs)
        error = RankLostError(
            f"rank {self.rank} lost its connection to rank {peer} over rail {rail} in {names or 'no collective'}: {exc}",
            rank=peer,
            phase="collective",
        )
        error.__cause__ = exc
        return error

    def _fail(self, error: SparkdlCommError) -> None:
        """Fail the engine with ``error``, unless it has failed before: end all collectives and close all connections.

        Peers notice the failure when their connections close.
        """
        with self._starting:
            if self._error is not None:
                return
            self._own_memory.clear_stamp()  # callers that learn of the error may change tensors that peers read
            self._error = error
        for job in self._jobs:
            job.set_error(error)
        self._jobs.clear()
        for sock in (sock for connection in self._connections.values() for sock in connection.sockets()):
            if self._registered.pop(sock, 0):
                self._selector.unregister(sock)
            sock.close()
