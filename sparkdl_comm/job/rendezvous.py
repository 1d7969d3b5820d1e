"""Rendezvous of the ranks at the driver's listener.

Every rank registers, and receives the registrations of all ranks as soon as the last one has registered. Spark's own
all-gather of barrier tasks polls, which takes a second.

1. A rank connects, proves that it knows the gang's secret, and says hello (rank and gang attempt).
2. It sends its registration: one frame of at most 1 MiB. It sends nothing more, so an EOF means that it died.
3. The driver answers all ranks at once, with all registrations or with a failure. The failure is that a rank died, the
   deadline has passed, or the driver gave up the run, for example because a task failed.
4. The connection ends.

The driver sends N registrations to each of N ranks. They differ only in digests and addresses, so they travel
compressed: a frame with the number of bytes, and then these bytes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import zlib
from dataclasses import asdict
from typing import Any

from sparkdl_comm.errors import DeadlineError, GangError, InputError, ProtocolError, RankLostError, SparkdlCommError
from sparkdl_comm.gang.failure import MAX_JSON, Failure
from sparkdl_comm.gang.frames import TIMEOUT_KEY, Clock, encode_frame, recv_exact, recv_frame, send_all, send_frame
from sparkdl_comm.gang.handshake import MAX_HELLO
from sparkdl_comm.gang.listen import HANDSHAKE_SECONDS, HOST_KEY
from sparkdl_comm.gang.members import format_ranks

#: The ``kind`` in a rank's hello.
KIND = "rendezvous"
#: Largest registration of a rank, in bytes.
MAX_REGISTRATION = 1 << 20
#: Seconds that a rank waits longer than the driver. In this time the driver reports which ranks are missing.
GRACE_SECONDS = 3.0
PHASE = "join"


class Rendezvous:
    """Driver's end: collects the registrations of one gang's ranks, and answers all of them. Thread-safe."""

    def __init__(self, world: int, timeout: float, clock: Clock = time.monotonic) -> None:
        """``timeout``: seconds that the other ranks have after the first one has registered."""
        self._world = world
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._texts: dict[int, str] = {}
        self._waiting_sockets: list[socket.socket] = []
        self._deadline = 0.0  # set by the first registration
        self._answer: bytes | None = None

    def admit(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        """Register the rank that said ``hello`` on ``sock``, and return when it has its answer. Closes ``sock``.

        :raises GangError: the rank is refused.
        :raises ProtocolError: its registration is malformed.
        :raises DeadlineError: its registration does not arrive in time.
        :raises ConnectionError: the rank is gone.
        """
        with sock:
            registration = recv_frame(sock, MAX_REGISTRATION, self._clock() + HANDSHAKE_SECONDS, self._clock)
            refusal = self._register(sock, hello.get("rank"), registration.get("text"))
            answer = self._await_answer(sock, hello["rank"]) if refusal is None else _encode_failure(refusal)
            send_all(sock, answer, self._clock() + self._timeout, self._clock)
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        """End the rendezvous. If ranks are missing, the waiting ranks get a failure: the driver has given up the
        run.
        """
        with self._lock:
            missing = self._missing_ranks()
            text = (
                f"the driver gave up the run before {format_ranks(missing)} of {self._world} had reached the rendezvous"
            )
            self._settle(_encode_failure(GangError(text, rank=min(missing, default=None), phase=PHASE)))

    def _register(self, sock: socket.socket, rank: Any, text: Any) -> SparkdlCommError | None:
        """Register a rank. Return None, or the reason why the rank is refused."""
        if type(rank) is not int or not 0 <= rank < self._world:
            return GangError(f"no rank {rank!r:.20} in a gang of {self._world}", phase=PHASE)
        if not isinstance(text, str):
            return ProtocolError(f"rank {rank} sent no registration", rank=rank, phase=PHASE)
        with self._lock:
            if rank in self._texts:
                return GangError(f"rank {rank} has registered already", rank=rank, phase=PHASE)
            if not self._texts:
                self._deadline = self._clock() + self._timeout
            self._texts[rank] = text
            self._waiting_sockets.append(sock)
            if len(self._texts) == self._world:
                self._settle(_encode_registrations([self._texts[each] for each in range(self._world)]))
        return None

    def _await_answer(self, sock: socket.socket, rank: int) -> bytes:
        if self._answer is not None:
            return self._answer
        error: SparkdlCommError
        try:
            recv_exact(sock, 1, self._deadline, self._clock)
            error = ProtocolError(f"rank {rank} sent more than its registration", rank=rank, phase=PHASE)
        except DeadlineError:
            with self._lock:
                missing = self._missing_ranks()
            error = DeadlineError(
                f"{format_ranks(missing)} of {self._world} did not reach the rendezvous at the driver within"
                f" {self._timeout:g} s of the first rank. Look at the log of the executor. Increase {TIMEOUT_KEY}, or, if the"
                f" executor cannot reach the driver, set {HOST_KEY}",
                rank=min(missing, default=None),
                phase=PHASE,
            )
        except ConnectionError as exc:  # also raised if the answer was settled meanwhile
            error = RankLostError(
                f"rank {rank} died, or lost its connection, while it waited for the other ranks: {exc}",
                rank=rank,
                phase=PHASE,
            )
        with self._lock:
            return self._settle(_encode_failure(error))

    def _missing_ranks(self) -> list[int]:
        return [rank for rank in range(self._world) if rank not in self._texts]

    def _settle(self, answer: bytes) -> bytes:
        """Settle the answer, and wake the connections that wait for it. The first answer stays. Return it."""
        if self._answer is None:
            self._answer = answer
            for sock in self._waiting_sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RD)
        return self._answer


def _encode_registrations(texts: list[str]) -> bytes:
    packed = zlib.compress(json.dumps(texts).encode())
    return encode_frame({"packed": len(packed)}, MAX_HELLO) + packed


def _decode_registrations(packed: bytes | bytearray, world: int) -> list[str]:
    """Return the registrations of all ranks.

    :raises ProtocolError: ``packed`` is malformed, or larger than the registrations can be.
    """
    inflate = zlib.decompressobj()
    try:
        texts = json.loads(inflate.decompress(packed, world * MAX_REGISTRATION))
    except (zlib.error, ValueError, RecursionError) as exc:
        raise ProtocolError(f"the driver's answer at the rendezvous has no registrations: {exc}") from exc
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ProtocolError("the driver's answer at the rendezvous has no registrations")
    return texts


def _encode_failure(error: SparkdlCommError) -> bytes:
    failure = Failure.of(error, 0, phase=PHASE, secondary=True)
    return encode_frame({"failure": asdict(failure)}, MAX_JSON + MAX_HELLO)


def register(
    sock: socket.socket,
    rank: int,
    world: int,
    attempt: str,
    text: str,
    timeout: float,
    clock: Clock = time.monotonic,
) -> list[str]:
    """Register a rank at the driver, and return the registrations of all ranks, by rank.

    :param sock: an authenticated connection to the driver's listener. It is closed.
    :param text: this rank's registration.
    :raises InputError: ``text`` is too long.
    :raises GangError: the driver refused this rank, or is gone.
    :raises DeadlineError: ranks are missing. The message names them.
    :raises RankLostError: a rank died.
    """
    with sock:
        try:
            registration = encode_frame({"text": text}, MAX_REGISTRATION)
        except InputError as exc:
            raise InputError(
                f"the description of rank {rank}'s columns is {exc.message}: use fewer columns, such as one vector"
            ) from exc
        deadline = clock() + timeout + GRACE_SECONDS
        try:
            send_frame(sock, {"kind": KIND, "attempt": attempt, "rank": rank}, MAX_HELLO, deadline, clock)
            send_all(sock, registration, deadline, clock)
            answer = recv_frame(sock, MAX_JSON + MAX_HELLO, deadline, clock)
            packed = recv_exact(sock, _packed_bytes(answer, world), deadline, clock)
        except ConnectionError as exc:
            raise GangError(f"the driver refused rank {rank} of gang attempt {attempt}, or is gone: {exc}") from exc
    if "failure" in answer:
        raise Failure.from_dict(answer["failure"]).to_exception()
    return _decode_registrations(packed, world)


def _packed_bytes(answer: dict[str, Any], world: int) -> int:
    """Return the number of bytes that follow the answer's frame, 0 if the answer is a failure."""
    size = answer.get("packed", 0)
    if type(size) is not int or not 0 <= size <= world * MAX_REGISTRATION:
        raise ProtocolError(f"the driver announced registrations of {size!r:.20} bytes")
    return size
