"""Wire format of the gang's store: a JSON frame with the sizes of the values, then the values' bytes."""

from __future__ import annotations

import functools
import socket
import zlib
from collections.abc import Iterable, Iterator

from sparkdl_comm.errors import GangError, InputError, ProtocolError
from sparkdl_comm.gang.frames import Clock, encode_frame, recv_frame, recv_into, send_all
from sparkdl_comm.gang.key_value_store import MAX_TOTAL, MAX_VALUE, Request
from sparkdl_comm.gang.tensors import STALL_SECONDS, pieces

#: Most bytes of a message's JSON: keys and sizes.
MAX_HEADER = 4 << 20
#: Most bytes that are combined into one send: the frame and small values.
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
