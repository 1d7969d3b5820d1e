"""torch.distributed store over the gang's authenticated connections, in place of torch's open TCPStore.

Rank 0 holds the keys and values, and has a thread for each connection. A request or a reply is a JSON frame with the
sizes of the values, then the values' bytes. A blocking request waits in the thread of its connection. A client uses an
idle connection or opens a new one per request, so a blocking ``get`` blocks neither other threads nor the control
plane. When the gang fails, all waits end with its failure.
"""

from __future__ import annotations

import functools
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from torch._C._distributed_c10d import Store  # torch.distributed.Store, by the name that is typed

from sparkdl_comm.errors import DeadlineError, GangError, InputError, ProtocolError, RankLostError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import Clock, await_message, encode_frame, hang_up, recv_frame, recv_into, send_all
from sparkdl_comm.gang.key_value_store import MAX_TOTAL, MAX_VALUE, MAX_WAIT, KeyValueStore, Request
from sparkdl_comm.gang.listen import HANDSHAKE_SECONDS
from sparkdl_comm.gang.tensors import STALL_SECONDS, pieces

#: Maximum bytes of a message's JSON: keys and sizes.
MAX_HEADER = 4 << 20
#: Maximum bytes that are combined into one send: the frame and small values.
_SMALL = 1 << 16


def send(sock: socket.socket, message: Request, clock: Clock) -> None:
    """Send a request or a reply.

    :raises InputError: a value is larger than the receiver accepts.
    """
    values = message.get("values", [])
    if any(len(value) > MAX_VALUE for value in values):
        raise InputError(f"a store value of {max(map(len, values))} bytes: at most {MAX_VALUE}")
    sizes = {"values": [len(value) for value in values], "crc32": functools.reduce(_add_crc, values, 0)}
    head = encode_frame({**message, **sizes}, MAX_HEADER)
    for part in _coalesce([head, *values]):
        for piece in pieces(memoryview(part)):
            send_all(sock, piece, clock() + STALL_SECONDS, clock)


def _coalesce(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Return the parts in order, with small parts combined. It saves sends: each of a thousand ranks may get a thousand
    values.
    """
    pending: list[bytes] = []
    size = 0
    for part in parts:
        if pending and size + len(part) > _SMALL:
            yield b"".join(pending)
            pending, size = [], 0
        pending.append(part)
        size += len(part)
    yield b"".join(pending)


def recv(sock: socket.socket, seconds: float, clock: Clock) -> Request:
    """Receive a request or a reply.

    :raises GangError: the sizes are invalid, or more than the store may hold; no memory was allocated for them.
    :raises ProtocolError: the values are damaged.
    """
    message = recv_frame(sock, MAX_HEADER, clock() + seconds, clock)
    sizes = message.get("values", [])
    if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size <= MAX_VALUE for size in sizes):
        raise GangError(f"peer announced store values of {sizes!r:.80} bytes: at most {MAX_VALUE} each")
    if sum(sizes) > MAX_TOTAL:
        raise GangError(f"peer announced store values of {sum(sizes)} bytes: at most {MAX_TOTAL} in total")
    message["values"] = []
    for size in sizes:
        value = bytearray(size)
        for piece in pieces(memoryview(value)):
            recv_into(sock, piece, clock() + STALL_SECONDS, clock)
        message["values"].append(bytes(value))
    if message.pop("crc32", 0) != functools.reduce(_add_crc, message["values"], 0):
        raise ProtocolError("peer sent store values with a wrong checksum")
    return message


def _add_crc(crc: int, value: bytes) -> int:
    return zlib.crc32(value, crc)


#: Seconds that a client waits longer than the limit in its request, for the reply to arrive. The control plane watches
#: whether rank 0 is alive.
SLACK_SECONDS = 30.0
_KIND = "store"
Handler: TypeAlias = Callable[[socket.socket, int], None]


class StoreService:
    """Stores of a gang at one rank: the keys and values at rank 0, connections to them at other ranks."""

    def __init__(
        self,
        rank: int,
        world: int,
        *,
        serve: Callable[[str, Handler], None],
        dial: Callable[[int, str, float], socket.socket],
        check: Callable[[float], None],
        clock: Clock,
    ) -> None:
        """Create the service. ``serve``, ``dial`` and ``check`` are methods of the gang."""
        self._rank, self._dial, self._check, self._clock = rank, dial, check, clock
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._sockets: set[socket.socket] = set()
        self._has_ended = False
        self._is_closed = False
        # C++ looks the Python methods up at each call, so Python must keep the store alive.
        self._stores: list[GangStore] = []
        self._key_values = KeyValueStore(world) if rank == 0 else None
        serve(_KIND, self._serve)

    def open(self, prefix: str) -> GangStore:
        store = GangStore(self, prefix)
        self._stores.append(store)
        return store

    def ask(self, request: Request, seconds: float) -> Request:
        """Send ``request`` to rank 0, where it may wait for ``seconds``. Raises the errors of :class:`GangStore`."""
        self._check(0.0)
        if self._key_values is not None:
            reply = self._key_values.answer(request)
        else:
            clock = self._clock
            try:
                sock = self._borrow(clock() + HANDSHAKE_SECONDS)
                try:
                    send(sock, request, clock)
                    reply = recv(sock, seconds + SLACK_SECONDS, clock)
                except BaseException:
                    self._drop(sock)
                    raise
                self._give_back(sock)
            except OSError as exc:  # DeadlineError is one too
                if isinstance(exc, GangError):
                    self._check(0.0)
                    raise
                if self._is_closed:
                    raise GangError("the gang is closed") from exc
                self._check(VERDICT_SECONDS)
                raise RankLostError(
                    f"rank {self._rank} lost the store at rank 0 in {request['op']}: {exc}", rank=0
                ) from exc
        if "error" in reply:
            self._check(VERDICT_SECONDS if reply["error"] == "GangError" else 0.0)
            kinds = {kind.__name__: kind for kind in (DeadlineError, InputError, ProtocolError)}
            kind = kinds.get(str(reply["error"]), GangError)
            raise kind(f"store {request['op']}: {reply.get('message')}", rank=self._rank)
        return reply

    def gather(self, key: str, value: bytes | Callable[[list[bytes]], bytes], seconds: float) -> list[bytes]:
        """Return the values of all ranks for ``key``, by rank, when all have given one.

        It takes one trip to rank 0, and nothing is kept there.
        """
        request = {"keys": [key], "seconds": seconds, "rank": self._rank}
        if callable(value):
            value = value(self.ask({**request, "op": "given by others"}, seconds)["values"])
        values: list[bytes] = self.ask({**request, "op": "gather", "values": [value]}, seconds)["values"]
        return values

    def fail(self, failure: Failure) -> None:
        """End all waits, as the gang has failed. It is quick, as it runs in the control thread."""
        self._end(f"the gang failed: {failure.error}: {failure.message}")

    def close(self) -> None:
        self._is_closed = True
        self._end("the gang is closed")

    def sockets(self) -> list[socket.socket]:
        return list(self._sockets)

    def _end(self, why: str) -> None:
        if self._key_values is not None:
            self._key_values.end(why)
        with self._lock:
            self._has_ended = True
            for sock in self._sockets:
                hang_up(sock)
            for sock in self._idle:
                sock.close()
                self._sockets.discard(sock)
            self._idle.clear()

    def _borrow(self, deadline: float) -> socket.socket:
        with self._lock:
            if self._has_ended:
                raise ConnectionAbortedError("the gang is closed")
            if self._idle:
                return self._idle.pop()
        sock = self._dial(0, _KIND, deadline)
        self._keep(sock)
        return sock

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._has_ended:
                self._sockets.add(sock)
                return
        sock.close()
        raise ConnectionAbortedError("the gang is closed")

    def _give_back(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._has_ended:
                self._idle.append(sock)
                return
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)
        sock.close()

    def _serve(self, sock: socket.socket, rank: int) -> None:
        """Answer a client's requests until it disconnects. Runs at rank 0, one thread per connection."""
        if self._key_values is None:
            raise GangError("the store is at rank 0")
        clock = self._clock
        self._keep(sock)
        try:
            while True:
                await_message(sock)
                request = recv(sock, STALL_SECONDS, clock)
                if self._has_ended:
                    return
                send(sock, self._key_values.answer({**request, "rank": rank}), clock)
        finally:
            self._drop(sock)


class GangStore(Store):
    """Implementation of ``torch.distributed.Store``. Values are bytes, at most 4 MiB each. Waits end after ``timeout``
    (see ``set_timeout``).

    :raises DeadlineError: a key is not set in time; a RuntimeError, as torch expects.
    :raises RankLostError: rank 0 is lost.
    :raises InputError: a value is too big.
    :raises GangError: the gang has failed, or is closed.
    """

    timeout: timedelta  # defined in C++; `set_timeout` sets it

    def __init__(self, service: StoreService, prefix: str) -> None:
        super().__init__()
        self._service = service
        self._prefix = prefix + "/"

    def _ask(self, op: str, keys: Sequence[str], wait: timedelta | None = None, **more: Any) -> Request:
        seconds = 0.0 if wait is None else wait.total_seconds() or MAX_WAIT
        request = {"op": op, "keys": [self._prefix + key for key in keys], "seconds": seconds, **more}
        if "values" in more:
            request["values"] = [_bytes(value) for value in more["values"]]
        return self._service.ask(request, seconds)

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], values=[value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", [key], amount=int(value))["number"])

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], values=[value])

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys)["yes"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys, self.timeout if timeout is None else timeout)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        values: list[bytes] = self._ask("compare_set", [key], values=[expected_value, desired_value])["values"]
        return values[0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key])["yes"])

    def num_keys(self) -> int:
        return int(self._ask("count", [""])["number"])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        values: list[bytes] = self._ask("get", keys, self.timeout)["values"]
        return values

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        self._ask("set", keys, values=values)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> GangStore:
        copied = self._service.open(self._prefix[:-1])
        copied.set_timeout(self.timeout)
        return copied

    # C++ uses these names.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
