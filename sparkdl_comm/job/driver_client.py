"""Rank 0's end of the connection to the driver; see :mod:`sparkdl_comm.job.driver_listener`."""

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
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import Clock, encode_frame, recv_frame, send_frame
from sparkdl_comm.gang.handshake import MAX_HELLO, Address
from sparkdl_comm.gang.tensors import MAX_HEADER, STALL_SECONDS, describe, pieces, raw

#: The ``kind`` in the hello of this connection.
KIND = "driver"
MAX_PROGRESS = 64 << 10
HEARTBEAT_SECONDS = 1.0


class DriverClient:
    """Rank 0's connection to the driver, for progress, printed lines and the trained tensors. Thread-safe."""

    def __init__(self, sock: socket.socket, stall_seconds: float, clock: Clock) -> None:
        """Do not call this directly: use ``connect``."""
        self._sock = sock
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._unsent = bytearray()  # rest of a message that the kernel accepted in part
        self._end_reason: str | None = None
        self._has_failed = False  # whether `send_tensors` failed
        self._watcher: threading.Thread | None = None

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
        """Connect to the driver within ``timeout`` seconds.

        :param stall_seconds: how long the transfer of tensors may make no progress.
        :raises DeadlineError: there is no connection in time.
        :raises AuthenticationError: the driver does not know the secret.
        :raises GangError: nothing listens there, or the driver expects another attempt.
        """
        deadline = clock() + timeout
        sock = handshake.connect(address, secret, deadline, bind_ip, clock)
        try:
            send_frame(sock, {"kind": KIND, "attempt": attempt}, MAX_HELLO, deadline, clock)
            recv_frame(sock, 64, deadline, clock)
        except BaseException as exc:
            sock.close()
            if isinstance(exc, ConnectionError):
                raise GangError(f"the driver refused rank 0 of gang attempt {attempt}: {exc}") from exc
            raise
        return cls(sock, stall_seconds, clock)

    def watch_driver(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` from a separate thread when the driver closes the connection or disappears.

        It is not called if ``send_tensors`` has raised because of that. The same thread sends the driver a heartbeat
        every second.
        """
        heartbeat = encode_frame({"type": "heartbeat"}, 64)

        def watch() -> None:
            poll = select.poll()
            poll.register(self._sock, select.POLLRDHUP)
            while not poll.poll(1000 * HEARTBEAT_SECONDS):
                self._try_send(heartbeat)
            with self._lock:
                is_expected = self._has_failed or self._end_reason == "closed"
            if not is_expected:
                callback()

        self._watcher = threading.Thread(target=watch, name="sparkdl-driver-gone", daemon=True)
        self._watcher.start()

    def send_progress(self, progress: dict[str, Any]) -> bool:
        """Send ``progress`` to the driver if this needs no waiting. Return False if the message was dropped.

        It is dropped if the message before it has not been sent yet, or if the driver is gone.

        :param progress: a JSON object of at most 64 KiB.
        :raises InputError: ``progress`` is larger.
        """
        return self._try_send(encode_frame({"type": "progress", "progress": progress}, MAX_PROGRESS))

    def send_lines(self, lines: list[str], dropped: int) -> bool:
        """Send printed ``lines`` to the driver, if this needs no waiting. Return False if they were dropped.

        ``dropped``: how many lines before them were dropped.
        """
        return self._try_send(encode_frame({"type": "log", "lines": lines, "dropped": dropped}, MAX_HEADER))

    def _try_send(self, frame: bytes) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._end_reason is None:
                self._flush()
            if self._end_reason is not None or self._unsent:
                return False
            self._unsent += frame
            self._flush()
        except OSError as exc:
            self._end_reason = str(exc)
            return False
        finally:
            self._lock.release()
        return True

    def send_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send ``tensors``, and wait until the driver has received them.

        Copies non-contiguous and GPU tensors one at a time.

        :raises ModelError: a tensor has no plain bytes.
        :raises GangError: the driver is gone, or refuses the tensors.
        :raises DeadlineError: the driver does not receive them in time.
        """
        header = encode_frame({"type": "tensors", **describe(tensors)}, MAX_HEADER)
        with self._lock:
            try:
                if self._end_reason is not None:
                    raise ConnectionResetError(self._end_reason)
                self._send(memoryview(bytes(self._unsent) + header))
                self._unsent.clear()
                crc = 0
                for tensor in tensors.values():
                    view = raw(tensor)
                    crc = zlib.crc32(view, crc)
                    self._send(view)
                self._send(memoryview(encode_frame({"crc32": crc}, 64)))
                recv_frame(self._sock, 64, self._clock() + self._stall_seconds, self._clock)
            except OSError as exc:  # DeadlineError is one too
                self._has_failed = True
                self._end_reason = str(exc)  # part of a frame may have been sent, so no other frame can follow
                text = f"the driver disconnected, or refused the model, while rank 0 was sending it: {exc}"
                raise (DeadlineError if isinstance(exc, DeadlineError) else GangError)(text, rank=0) from exc

    def report_failure(self, failure: Failure) -> None:
        """Tell the driver what stopped the gang, within a second.

        Spark reports the failure too, but Spark Connect truncates long messages.
        """
        with self._lock:
            self._send_last({"type": "failure", "failure": asdict(failure)})

    def report_all_left(self) -> None:
        """Tell the driver, within a second, that all ranks have left the gang and only have to exit."""
        with self._lock:
            self._send_last({"type": "all left"})

    def close(self) -> None:
        """Say goodbye, within a second, and close the connection. May be called more than once."""
        with self._lock:
            self._send_last({"type": "bye"})
            self._end_reason = "closed"
        if self._watcher is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
            if self._watcher is not threading.current_thread():
                self._watcher.join()
        self._sock.close()

    def __enter__(self) -> DriverClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _send_last(self, message: dict[str, Any]) -> None:
        if self._end_reason is not None:
            return
        deadline = self._clock() + 1.0
        try:
            frames.send_all(self._sock, bytes(self._unsent), deadline, self._clock)
            self._unsent.clear()
            send_frame(self._sock, message, MAX_HEADER, deadline, self._clock)
        except OSError as exc:
            self._end_reason = str(exc)

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]

    def _send(self, view: memoryview) -> None:
        for piece in pieces(view):
            frames.send_all(self._sock, piece, self._clock() + self._stall_seconds, self._clock)
