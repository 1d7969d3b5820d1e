"""Requests and replies of the gang's store on the wire: a JSON frame with the sizes of the values, and these as they are."""

from __future__ import annotations

import functools
import socket
import zlib
from collections.abc import Iterable, Iterator

from sparkdl_comm.errors import GangError, InputError, ProtocolError
from sparkdl_comm.gang.frames import Clock, encode_frame, recv_frame, recv_into, send_all
from sparkdl_comm.gang.key_value_store import MAX_TOTAL, MAX_VALUE, Request
from sparkdl_comm.gang.tensors import STALL_SECONDS, pieces

#: Bytes of a request's or reply's JSON: keys and sizes.
MAX_HEADER = 4 << 20
#: Up to here, values go out together, and with what announces them.
_SMALL = 1 << 16


def send(sock: socket.socket, message: Request, clock: Clock) -> None:
    """Sends a request or a reply.

    :raises InputError: it has a value that the other side would refuse.
    """
    values = message.get("values", [])
    if any(len(value) > MAX_VALUE for value in values):
        raise InputError(f"a store value of {max(map(len, values))} bytes: at most {MAX_VALUE}")
    sizes = {"values": [len(value) for value in values], "crc32": functools.reduce(_add_crc, values, 0)}
    head = encode_frame({**message, **sizes}, MAX_HEADER)
    for part in _joined([head, *values]):
        for piece in pieces(memoryview(part)):
            send_all(sock, piece, clock() + STALL_SECONDS, clock)


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts in their order, small ones together: of a thousand ranks each gets what a thousand have given."""
    some: list[bytes] = []
    size = 0
    for part in parts:
        if some and size + len(part) > _SMALL:
            yield b"".join(some)
            some, size = [], 0
        some.append(part)
        size += len(part)
    yield b"".join(some)


def recv(sock: socket.socket, seconds: float, clock: Clock) -> Request:
    """Receives a request or a reply.

    :raises GangError: its sizes are none, or more than the store may hold; nothing has been allocated for them.
    :raises ProtocolError: the values are damaged.
    """
    message = recv_frame(sock, MAX_HEADER, clock() + seconds, clock)
    sizes = message.get("values", [])
    if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size <= MAX_VALUE for size in sizes):
        raise GangError(f"peer announced store values of {sizes!r:.80} bytes: at most {MAX_VALUE} each")
    if sum(sizes) > MAX_TOTAL:
        raise GangError(f"peer announced store values of {sum(sizes)} bytes: more than {MAX_TOTAL}")
    message["values"] = []
    for size in sizes:
        value = bytearray(size)
        for piece in pieces(memoryview(value)):
            recv_into(sock, piece, clock() + STALL_SECONDS, clock)
        message["values"].append(bytes(value))
    if message.pop("crc32", 0) != functools.reduce(_add_crc, message["values"], 0):
        raise ProtocolError("peer sent store values with another checksum than their bytes have")
    return message


def _add_crc(crc: int, value: bytes) -> int:
    return zlib.crc32(value, crc)
