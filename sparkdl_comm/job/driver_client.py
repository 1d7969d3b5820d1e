"""Rank 0's end of its connection to the driver; see :mod:`sparkdl_comm.job.driver_listener`."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from sparkdl_comm.errors import DeadlineError, GangError
from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.acceptor import MAX_HELLO
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import Clock, encode_frame, recv_frame, send_frame
from sparkdl_comm.gang.handshake import Address
from sparkdl_comm.gang.tensors import MAX_HEADER, STALL_SECONDS, describe, pieces, raw
from sparkdl_comm.job.driver_listener import KIND

MAX_PROGRESS = 64 << 10
HEARTBEAT_SECONDS = 1.0


class DriverClient:
    """Rank 0's connection to the driver, for progress, printed lines and the trained tensors. Thread-safe."""

    def __init__(self, sock: socket.socket, stall_seconds: float, clock: Clock) -> None:
        """Not to be called directly: see ``connect``."""
        self._sock = sock
        self._stall = stall_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._rest = bytearray()  # of a progress message that the kernel took only a part of
        self._gone: str | None = None
        self._refused = False  # what `send_tensors` sent
        self._watch: threading.Thread | None = None

    @classmethod
    def connect(
        cls,
        address: Address,
        secret: bytes,
        attempt: str,
        timeout: float,
        *,
        bind_ip: str | None = None,
        stall_seconds: float = STALL_SECONDS,
        clock: Clock = time.monotonic,
    ) -> DriverClient:
        """Connect to the driver within ``timeout`` seconds. ``stall_seconds``: how long tensors may stand still.

        :raises DeadlineError: there is no connection in time.
        :raises AuthenticationError: the driver does not know the secret.
        :raises GangError: nobody is there, or it expects another attempt.
        """
        deadline = clock() + timeout
        sock = handshake.connect(address, secret, deadline, bind_ip, clock)
        try:
            send_frame(sock, {"kind": KIND, "epoch": attempt}, MAX_HELLO, deadline, clock)
            recv_frame(sock, 64, deadline, clock)
        except BaseException as exc:
            sock.close()
            if isinstance(exc, ConnectionError):
                raise GangError(f"the driver turned rank 0 of gang attempt {attempt} away: {exc}") from exc
            raise
        return cls(sock, stall_seconds, clock)

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, from a thread of its own, when the driver ends the connection, or is gone with it; not if
        ``send_tensors`` raises that. The same thread tells the driver every second that this process runs."""
        heartbeat = encode_frame({"type": "heartbeat"}, 64)

        def watch() -> None:
            poll = select.poll()
            poll.register(self._sock, select.POLLRDHUP)
            while not poll.poll(1000 * HEARTBEAT_SECONDS):
                self._tell(heartbeat)
            with self._lock:
                known = self._refused or self._gone == "closed"
            if not known:
                callback()

        self._watch = threading.Thread(target=watch, name="sparkdl-driver-gone", daemon=True)
        self._watch.start()

    def progress(self, progress: dict[str, Any]) -> bool:
        """Show ``progress`` (JSON, up to 64 KiB, else InputError) to the driver if that takes no waiting; False
        if it was dropped, because the one before has not gone out or the driver is away."""
        return self._tell(encode_frame({"type": "progress", "progress": progress}, MAX_PROGRESS))

    def log(self, lines: list[str], dropped: int) -> bool:
        """Show printed ``lines`` to the driver, and how many before them were dropped; as :meth:`progress`."""
        return self._tell(encode_frame({"type": "log", "lines": lines, "dropped": dropped}, MAX_HEADER))

    def _tell(self, frame: bytes) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._gone is None:
                self._push()
            if self._gone is not None or self._rest:
                return False
            self._rest += frame
            self._push()
        except OSError as exc:
            self._gone = str(exc)
            return False
        finally:
            self._lock.release()
        return True

    def send_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send ``tensors`` and wait until the driver has them; non-contiguous and GPU ones are copied one at a
        time.

        :raises ModelError: a tensor has no plain bytes.
        :raises GangError: the driver is away.
        :raises DeadlineError: the driver does not take them in time.
        """
        header = encode_frame({"type": "tensors", **describe(tensors)}, MAX_HEADER)
        with self._lock:
            try:
                if self._gone is not None:
                    raise ConnectionResetError(self._gone)
                self._send(memoryview(bytes(self._rest) + header))
                self._rest.clear()
                crc = 0
                for tensor in tensors.values():
                    view = raw(tensor)
                    crc = zlib.crc32(view, crc)
                    self._send(view)
                self._send(memoryview(encode_frame({"crc32": crc}, 64)))
                recv_frame(self._sock, 64, self._clock() + self._stall, self._clock)
            except OSError as exc:  # DeadlineError is one too
                self._refused = True
                self._gone = str(exc)  # what has gone out cannot be taken back, so nothing can follow it
                text = f"the driver went away, or refused, while rank 0 sent the model: {exc}"
                raise (DeadlineError if isinstance(exc, DeadlineError) else GangError)(text, rank=0) from exc

    def failed(self, failure: Failure) -> None:
        """Tell the driver what stopped the gang, if that takes no more than a second. Spark tells it too, but Spark
        Connect cuts long messages off."""
        with self._lock:
            self._last({"type": "failure", "failure": asdict(failure)})

    def all_left(self) -> None:
        """Tell the driver that the ranks have left the gang, and only have to end, if that takes no more than a second."""
        with self._lock:
            self._last({"type": "all left"})

    def close(self) -> None:
        """Say goodbye, waiting a second at most. May be repeated."""
        with self._lock:
            self._last({"type": "bye"})
            self._gone = "closed"
        if self._watch is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes it
            if self._watch is not threading.current_thread():
                self._watch.join()
        self._sock.close()

    def __enter__(self) -> DriverClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _last(self, message: dict[str, Any]) -> None:
        if self._gone is not None:
            return
        deadline = self._clock() + 1.0
        try:
            frames.send_all(self._sock, bytes(self._rest), deadline, self._clock)
            self._rest.clear()
            send_frame(self._sock, message, MAX_HEADER, deadline, self._clock)
        except OSError as exc:
            self._gone = str(exc)

    def _push(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._rest:
                del self._rest[: self._sock.send(self._rest)]

    def _send(self, view: memoryview) -> None:
        for piece in pieces(view):
            frames.send_all(self._sock, piece, self._clock() + self._stall, self._clock)
