"""Control plane of a gang: one thread per rank that watches its connections and settles which failure was first.

The connections form a star around rank 0. Frames:

- ``go`` (0 -> all): all ranks have joined.
- ``failure`` (a rank -> 0): a report. ``failure`` (0 -> all): the verdict.
- ``leave``: the sender closes on purpose; the EOF that follows is no failure.
- ``refused`` (0 -> a peer): rank 0 does not admit the peer.

Rank 0 decides, so that all ranks name the same failure: the first report that is not secondary. A secondary report ("my
peer vanished") is held back for HOLD_SECONDS, because it often arrives before the EOF of the rank that caused it. Only
this thread uses the connections; other threads pass it work with ``post``.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sparkdl_comm.errors import GangError, ProtocolError, SparkdlCommError
from sparkdl_comm.gang.failure import MAX_JSON, Failure
from sparkdl_comm.gang.frames import Clock, FrameBuffer, encode_frame
from sparkdl_comm.gang.listen import Acceptor
from sparkdl_comm.gang.posted_work import PostedWork

MAX_FRAME = MAX_JSON + 1024
#: Seconds that rank 0 holds back a secondary report.
HOLD_SECONDS = 1.0
#: Seconds that ``announce`` waits for rank 0's verdict.
ANNOUNCE_SECONDS = 2.0
#: Seconds that ``stop`` waits for the last bytes to be sent.
LINGER_SECONDS = 1.0
#: Seconds to wait for the verdict when a connection breaks, before the broken connection itself is reported.
VERDICT_SECONDS = 1.0

_log = logging.getLogger(__name__)


class _Peer:
    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.frames = FrameBuffer(MAX_FRAME)
        self.unsent = bytearray()
        self.has_explained_eof = False  # it left, or reported a failure: its EOF adds no information
        self.has_left = False


class ControlPlane:
    """Control thread of one rank.

    ``failure`` is set once. ``changed`` is notified then, and on ``go``.
    """

    def __init__(self, rank: int, world: int, acceptors: Sequence[Acceptor], clock: Clock = time.monotonic) -> None:
        self.rank = rank
        self.world = world
        self.changed = threading.Condition()
        self.failure: Failure | None = None
        self.is_complete = False
        self.on_lost: Callable[[int], None] | None = None  # rank 0: called for a lost rank if that is no failure
        self._acceptors = acceptors
        self._clock = clock
        self._callbacks: list[Callable[[Failure], None]] = []
        self._peers: dict[int, _Peer] = {}
        #: Rank 0: time until which a secondary report is held back, and the report.
        self._deferred: tuple[float, Failure] | None = None
        self._pending: Failure | None = None  # other ranks: own report that rank 0 has not answered
        self._posted = PostedWork()
        self._stop_by: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._posted.wake, selectors.EVENT_READ, self._posted.drain)
        for acceptor in acceptors:
            self._selector.register(acceptor.sock, selectors.EVENT_READ, acceptor.accept)
        self._thread = threading.Thread(target=self._run, name=f"sparkdl-gang-{rank}", daemon=True)
        self._thread.start()

    # ---- called from any thread

    def post(self, work: Callable[[], None]) -> None:
        """Have the control thread run ``work`` soon."""
        self._posted.post(work)

    def add_peer(self, rank: int, sock: socket.socket) -> None:
        """Watch an authenticated connection to ``rank``."""
        self.post(lambda: self._add(rank, sock))

    def send_go(self) -> None:
        """Tell all ranks that the gang is complete. Called on rank 0."""
        self.post(lambda: self._send_all({"type": "go"}))

    def announce(self, failure: Failure) -> None:
        """Report ``failure`` and wait until the gang has settled on a failure, perhaps another one, at most
        ANNOUNCE_SECONDS.
        """
        if not self._thread.is_alive():
            return  # the gang is closed

        def settled() -> bool:
            # At rank 0 the verdict must also be sent, as the process may be about to end.
            return self.failure is not None and not any(peer.unsent for peer in list(self._peers.values()))

        self.post(lambda: self._report(failure))
        with self.changed:
            if self.changed.wait_for(settled, ANNOUNCE_SECONDS) or self.failure is not None:
                return
            # Rank 0 does not answer. The own failure is the only one known.
            self.post(lambda: self._record(failure))
            self.changed.wait_for(lambda: self.failure is not None, ANNOUNCE_SECONDS / 4)

    def on_failure(self, callback: Callable[[Failure], None]) -> None:
        with self.changed:
            if self.failure is None:
                self._callbacks.append(callback)
                return
        callback(self.failure)

    def stop(self, leave: bool) -> None:
        """Close everything. ``leave``: first tell the peers that this is on purpose."""
        if not self._thread.is_alive():
            return

        def begin() -> None:
            if self._stop_by is None:
                self._stop_by = self._clock() + (LINGER_SECONDS if leave else 0.0)
                if leave:
                    self._send_all({"type": "leave"})
                for peer in list(self._peers.values()):
                    self._half_close(peer)

        self.post(begin)
        if threading.current_thread() is not self._thread:
            self._thread.join(LINGER_SECONDS + 1.0)

    def join_connections(self, seconds: float) -> None:
        """Wait for the connections' threads, at most ``seconds``. Call it after :meth:`stop`, when all users of
        connections have ended.
        """
        for acceptor in self._acceptors:
            acceptor.join(seconds)

    def is_alone(self) -> bool:
        """Return whether all peers have left or never joined."""
        return all(peer.has_left for peer in list(self._peers.values()))

    def sockets(self) -> list[Any]:
        """Return everything with a file descriptor, for a forked child to close."""
        peers = [peer.sock for peer in list(self._peers.values())]
        return [*peers, *(acceptor.sock for acceptor in self._acceptors), *self._posted.sockets(), self._selector]

    # ---- the control thread

    def _run(self) -> None:
        try:
            while self._stop_by is None or (self._peers and self._clock() < self._stop_by):
                for key, _ in self._selector.select(self._wait_seconds()):
                    key.data()
                self._posted.run()
                if self._deferred is not None and self._clock() >= self._deferred[0]:
                    self._record(self._deferred[1])
        except Exception as exc:  # noqa: BLE001 - without this thread the gang would notice no failure
            _log.exception("the control thread of rank %d failed", self.rank)
            self._record(Failure.of(exc, self.rank, None, "gang control"))
        finally:
            for peer in list(self._peers.values()):
                self._forget(peer)
            self._selector.close()
            for acceptor in self._acceptors:
                acceptor.close()
            self._posted.close()

    def _wait_seconds(self) -> float:
        waits = [60.0]
        if self._deferred is not None:
            waits.append(self._deferred[0] - self._clock())
        if self._stop_by is not None:
            waits.append(self._stop_by - self._clock())
        return max(0.0, min(waits))

    def _add(self, rank: int, sock: socket.socket) -> None:
        peer = self._peers[rank] = _Peer(rank, sock)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._serve(peer))
        if self.failure is not None:  # it came in after the verdict
            self._send(peer, {"type": "failure", "failure": asdict(self.failure)})

    def _forget(self, peer: _Peer) -> None:
        if self._peers.get(peer.rank) is peer:
            del self._peers[peer.rank]
            self._selector.unregister(peer.sock)
            peer.sock.close()

    def _send_all(self, message: dict[str, Any]) -> None:
        for peer in list(self._peers.values()):
            self._send(peer, message)

    def _send(self, peer: _Peer, message: dict[str, Any]) -> None:
        peer.unsent += encode_frame(message, MAX_FRAME)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.sock.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # the next read raises the cause
        if not peer.unsent:
            with self.changed:
                self.changed.notify_all()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._peers.get(peer.rank) is peer:
            self._selector.modify(peer.sock, events, lambda: self._serve(peer))
        if self._stop_by is not None:
            self._half_close(peer)

    def _half_close(self, peer: _Peer) -> None:
        # Not close(): if bytes of the peer are unread, that would reset the connection and drop the last frame.
        if not peer.unsent:
            try:
                peer.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._forget(peer)

    def _serve(self, peer: _Peer) -> None:
        if peer.unsent:
            self._flush(peer)
        try:
            data = peer.sock.recv(65536)
            if data:
                for message in peer.frames.feed(data):
                    self._handle(peer, message)
                return
            why = "its connection closed"
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            why = str(exc)
        except SparkdlCommError as exc:
            why = exc.message
        self._forget(peer)
        if not peer.has_explained_eof and self._stop_by is None:
            self._handle_lost(peer.rank, why)

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "leave":
            with self.changed:
                peer.has_explained_eof = peer.has_left = True
                self.changed.notify_all()
        elif kind == "failure":
            try:
                failure = Failure.from_dict(message.get("failure"))
            except ProtocolError as exc:
                raise ProtocolError(f"sent a malformed failure: {exc.message}") from exc
            peer.has_explained_eof = True
            self._report(failure) if self.rank == 0 else self._record(failure)
        elif kind == "go" and self.rank != 0:
            with self.changed:
                self.is_complete = True
                self.changed.notify_all()
        elif kind == "refused" and self.rank != 0:
            error = GangError(f"rank 0 refused rank {self.rank}: {message.get('reason')!s:.500}")
            self._record(Failure.of(error, self.rank, None, "join"))
        else:
            raise GangError(f"sent an unknown control message {kind!r:.80}")

    def _handle_lost(self, rank: int, why: str) -> None:
        if self.rank != 0 and self._pending is not None and not self._pending.secondary:
            self._record(self._pending)  # the own failure was first; rank 0 was lost before it could confirm that
            return
        if rank != 0 and self.on_lost is not None:
            _log.warning("rank %d was lost (%s); the gang goes on without it", rank, why)
            self.on_lost(rank)
            return
        text = f"rank {rank} was lost: its process or executor died ({why}, seen by rank {self.rank})"
        self._record(Failure(rank, None, "gang", "RankLostError", text, ""))

    def _report(self, failure: Failure) -> None:
        if self.failure is not None:
            return
        if self.rank != 0 and 0 in self._peers:
            self._pending = self._pending or failure
            self._send(self._peers[0], {"type": "failure", "failure": asdict(failure)})
        elif failure.secondary and self._peers:
            self._deferred = self._deferred or (self._clock() + HOLD_SECONDS, failure)
        else:
            self._record(failure)

    def _record(self, failure: Failure) -> None:
        if self.failure is not None:
            return
        self._deferred = None
        if self.rank == 0:  # before the callbacks, which may be slow, and before `announce` checks whether it was sent
            self._send_all({"type": "failure", "failure": asdict(failure)})
        with self.changed:
            self.failure = failure
            callbacks, self._callbacks = self._callbacks, []
            self.changed.notify_all()
        for callback in callbacks:
            try:
                callback(failure)
            except Exception:  # noqa: BLE001 - the callback belongs to the caller
                _log.exception("a failure callback of rank %d failed", self.rank)
