"""The driver's listener: the ranks' rendezvous, and the connection on which rank 0 reports.

The ranks of a gang meet here (:mod:`sparkdl_comm.job.rendezvous`). Then rank 0 sends progress and printed lines while
it trains, and the trained tensors at the end. Spark's task results cannot carry these: they are limited in size, and
arrive only when the task ends. Rank 0's end is :mod:`sparkdl_comm.job.driver_client`.

Frames from rank 0, after handshake and hello: ``heartbeat``, ``progress`` and ``log`` (any number), ``tensors`` (a
header, then raw bytes, then a frame with their CRC-32), ``all left`` or ``failure``, ``bye``. The driver answers the
tensors with ``received_tensors``. Rank 0 waits for this answer before it ends its task.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import psutil
import torch

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, RankLostError, SparkdlCommError
from sparkdl_comm.gang import frames, listen
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import TIMEOUT_KEY, Clock, hang_up, recv_frame, send_frame
from sparkdl_comm.gang.handshake import Address
from sparkdl_comm.gang.listen import HANDSHAKE_SECONDS, Acceptor
from sparkdl_comm.gang.tensors import MAX_HEADER, STALL_SECONDS, allocate, pieces, raw
from sparkdl_comm.job import rendezvous
from sparkdl_comm.job.driver_client import KIND

#: Address of the listener, and of the ranks, if the ranks are processes of this machine.
LOCAL_HOST = "127.0.0.1"
#: Interval at which to call `check`, in seconds.
CHECK_SECONDS = 1.0
#: Extra silence that the driver allows rank 0, beyond the timeout of the other ranks, in seconds. They can report the
#: reason.
_EXTRA_SILENCE_SECONDS = 10.0

_log = logging.getLogger(__name__)

OnProgress = Callable[[dict[str, Any]], None]
#: Callback for lines that rank 0 printed, and the number of lines dropped before them.
OnLog = Callable[[list[str], int], None]


def _ignore(lines: list[str], dropped: int) -> None:
    pass


class DriverListener:
    """Listener of the driver for the ranks of gang attempt ``attempt``.

    Ranks of other attempts are refused. If ``attempt`` is None, rank 0's first connection sets it. ``on_progress`` and
    ``on_log`` are called from the thread of rank 0's connection. Exceptions that they raise are logged.
    """

    def __init__(
        self,
        host: str,
        ports: range | None,
        secret: bytes,
        on_progress: OnProgress,
        *,
        on_log: OnLog | None = None,
        attempt: str | None = None,
        world: int = 1,
        timeout: float = 60.0,
        bind: str | None = None,
        max_bytes: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Listen on an address chosen by ``host`` and ``bind`` (see ``listen.driver_addresses``).

        :param world: number of ranks that meet.
        :param timeout: seconds from the first rank's arrival until all must have met. ``check`` uses the same timeout.
        :param max_bytes: limit for the tensors, in bytes. None: the memory that is available when they arrive.
        :raises ConfError: there is no such address, or no free port.
        """
        self._timeout = timeout
        #: Start of the wait for rank 0's next message.
        self._silent_since: float | None = None
        #: Time from which the run only has to end, and the event that ended it.
        self._ending: tuple[float, str] | None = None
        self._on_progress = on_progress
        self._on_log = on_log or _ignore
        self._max_bytes = max_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._attempt = attempt
        self._is_connected = self._is_closed = False
        self._sock: socket.socket | None = None
        self._tensors: dict[str, torch.Tensor] | None = None
        self._error: SparkdlCommError | None = None
        self._failure: Failure | None = None
        ip, announced_host = listen.driver_addresses(host, bind)
        self._rendezvous = rendezvous.Rendezvous(world, timeout, clock)
        self._acceptor = Acceptor(ip, ports, secret, self._on_peer, clock, peers=world)
        #: Address that the ranks connect to.
        self.address: Address = (announced_host, self._acceptor.address[1])
        self._wake_in, self._wake_out = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="sparkdl-driver", daemon=True)
        self._thread.start()

    def wait_for_tensors(self, deadline: float) -> dict[str, torch.Tensor]:
        """Wait for the trained tensors, and return them, on the CPU.

        :param deadline: a value of the clock (``time.monotonic()``, seconds).
        :raises DeadlineError: the tensors do not arrive in time.
        :raises RankLostError: rank 0 disconnected before it had sent them.
        :raises ProtocolError: their header is wrong.
        :raises GangError: rank 0 closed its connection without sending any, or the listener is closed.
        """

        def has_ended() -> bool:
            return self._tensors is not None or self._error is not None or self._is_closed

        with self._changed:
            self._changed.wait_for(has_ended, max(0.0, deadline - self._clock()))
            if self._tensors is not None:
                return self._tensors
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise GangError("the driver's listener is closed")
        state = "sent no model" if self._is_connected else "did not connect"
        raise DeadlineError(f"rank 0 of gang attempt {self._attempt} {state} to the driver in time ({TIMEOUT_KEY})")

    @property
    def received_tensors(self) -> dict[str, torch.Tensor] | None:
        """The trained tensors, or None if rank 0 has not sent them."""
        with self._changed:
            return self._tensors

    def wait_for_failure(self, deadline: float) -> Failure | None:
        """Return the failure that stopped the gang, as rank 0 reports it.

        Returns None if rank 0 reports none until ``deadline``, or has disconnected.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or self._error or self._is_closed, max(0.0, deadline - self._clock())
            )
            return self._failure

    def check(self) -> None:
        """Check that rank 0 still sends, and that the run ends in time. Call this every ``CHECK_SECONDS`` while the
        ranks run.

        :raises RankLostError: rank 0 is connected but silent. Or a rank does not exit after the gang has ended, when
            ranks no longer watch each other.
        """
        now, silent_since, ending = self._clock(), self._silent_since, self._ending
        if ending is not None and now - ending[0] > self._timeout:
            raise RankLostError(
                f"a rank has not exited {self._timeout:g} s ({TIMEOUT_KEY}) after {ending[1]}: its process or its executor"
                " hangs"
            )
        if silent_since is not None and now - silent_since > self._timeout + _EXTRA_SILENCE_SECONDS:
            raise RankLostError(
                f"rank 0 has sent nothing for {now - silent_since:.0f} s ({TIMEOUT_KEY}): its process or its executor hangs,"
                " or the network to it is down",
                rank=0,
            )

    def close(self) -> None:
        """Stop listening, and drop the connection. Ranks that wait at the rendezvous get a failure. May be called more
        than once.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            sock, self._sock = self._sock, None
            self._changed.notify_all()
        if sock is not None:
            hang_up(sock)
        self._rendezvous.close()
        self._wake_in.close()  # wakes the thread: its end becomes readable
        self._thread.join(2.0)

    def __enter__(self) -> DriverListener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._acceptor.sock, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while not self._is_closed:
            poll.poll(60_000)
            self._acceptor.accept()  # does nothing if no connection waits
        self._acceptor.close()
        self._wake_out.close()

    def _on_peer(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        kind, attempt = hello.get("kind"), hello.get("attempt")
        is_known = kind in (KIND, rendezvous.KIND)
        with self._changed:
            if not is_known or not isinstance(attempt, str) or attempt != (self._attempt or attempt):
                raise GangError(f"the driver expects gang attempt {self._attempt}, not {attempt!r:.80}")
        if kind == rendezvous.KIND:
            self._rendezvous.admit(sock, hello)
        else:
            self._serve(sock, attempt)

    def _serve(self, sock: socket.socket, attempt: str) -> None:
        """Serve rank 0's connection until it ends."""
        with self._changed:
            if self._is_connected or self._is_closed:
                raise GangError(f"gang attempt {attempt} already has a connection to the driver")
            self._attempt, self._is_connected, self._sock = attempt, True, sock
        has_left = False
        try:
            # Tells rank 0 at once that it was accepted.
            send_frame(sock, {"type": "welcome"}, 64, self._clock() + HANDSHAKE_SECONDS, self._clock)
            self._receive(sock)
            has_left = True
            error: SparkdlCommError = GangError("rank 0 closed its connection without sending the model")
        except SparkdlCommError as exc:
            error = exc
        except OSError as exc:
            error = RankLostError(f"rank 0 disconnected before it had sent the model: {exc}", rank=0)
        except (RuntimeError, MemoryError) as exc:  # torch has no memory for the tensors
            error = GangError(f"the driver cannot receive the model: {exc}")
        self._silent_since = None
        if self._ending is None and not has_left:
            self._ending = self._clock(), "rank 0's connection to the driver broke"
        sock.close()
        with self._changed:
            if self._sock is sock:  # otherwise the listener is closed
                self._sock = None
                self._error = error
                self._changed.notify_all()

    def _receive(self, sock: socket.socket) -> None:
        clock = self._clock
        while True:
            self._silent_since = clock()
            frames.await_message(sock)  # `check` has the deadline
            message = recv_frame(sock, MAX_HEADER, clock() + STALL_SECONDS, clock)
            self._silent_since = None  # the driver is busy with the message: not rank 0's silence
            kind = message.get("type")
            if kind == "bye":
                return
            if kind == "heartbeat":
                continue
            if kind == "all left":
                self._ending = clock(), "all had left the gang"
            elif kind == "tensors":
                limit = psutil.virtual_memory().available if self._max_bytes is None else self._max_bytes
                tensors = allocate(message, limit)
                crc = 0
                for tensor in tensors.values():
                    for piece in pieces(raw(tensor)):
                        if self._sock is not sock:  # the kernel accepts bytes even after `hang_up`
                            raise GangError("the driver no longer waits for this model")
                        frames.recv_into(sock, piece, clock() + STALL_SECONDS, clock)
                        crc = zlib.crc32(piece, crc)
                if recv_frame(sock, 64, clock() + STALL_SECONDS, clock) != {"crc32": crc}:
                    raise GangError("the trained model was corrupted on its way from rank 0: its CRC-32 does not match")
                with self._changed:
                    if self._sock is sock:
                        self._tensors = tensors
                        self._changed.notify_all()
                send_frame(sock, {"type": "received"}, 64, clock() + STALL_SECONDS, clock)
            elif kind == "failure":
                failure = Failure.from_dict(message.get("failure"))
                with self._changed:
                    if self._sock is sock:
                        self._failure = failure
                        self._changed.notify_all()
            elif kind == "progress" and isinstance(message.get("progress"), dict):
                self._notify(self._on_progress, message["progress"])
            elif kind == "log" and isinstance(message.get("lines"), list) and isinstance(message.get("dropped"), int):
                self._notify(self._on_log, message["lines"], message["dropped"])
            else:
                raise ProtocolError(f"rank 0 sent an unknown message {kind!r:.40}")

    def _notify(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001 - the callback is the caller's, and the model must still arrive
            _log.exception("cannot show a message of rank 0")
