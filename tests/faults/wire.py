"""Faults of a rank's connections and disk, struck from inside of its process; see :mod:`tests.faults.injection`.

Each takes `pick` (0 to 1: which connection, which byte) and the process of the executor, and returns what it struck, for the
marker, and how to undo what would outlive the run. The connection of the worker to its executor is Spark's own: left out.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from typing import Any

import psutil

Struck = tuple[Any, Callable[[], None]]
Address = tuple[str, int]

#: Bytes that a file may have when the disk is full; every checkpoint's are more.
FULL_BYTES = 64 * 1024


def cut_link(pick: float, executor: int) -> Struck:
    """One TCP connection to another rank or to the driver ends, both ways: as after a reset by something in between."""
    links = [
        link
        for link in psutil.Process().net_connections("tcp")
        if link.status == psutil.CONN_ESTABLISHED and plain(link.raddr) not in addresses(executor)
    ]
    if not links:
        return None, _nothing
    link = sorted(links, key=lambda link: (link.laddr, link.raddr))[int(pick * len(links))]
    _end(link.fd)
    return [link.laddr, link.raddr], _nothing


def flip_byte(pick: float, executor: int) -> Struck:
    """One byte of what this process sends next is another one.

    Left alone are gloo's connections, which are not Python's, and the gradients in a collective's messages: what guards
    these is TCP's checksum.
    """
    owned = addresses(executor)
    original = {name: getattr(socket.socket, name) for name in ("send", "sendmsg")}
    done: list[int] = []

    def is_due(sock: socket.socket) -> bool:
        try:
            return not done and sock.family == socket.AF_INET and plain(sock.getpeername()) not in owned
        except OSError:
            return False

    def spoilt(data: Any) -> bytes:
        copy = bytearray(data)
        done.append(len(copy))
        copy[int(pick * len(copy))] ^= 0x10
        return bytes(copy)

    def send(sock: socket.socket, data: Any, *more: Any) -> int:
        return original["send"](sock, spoilt(data) if len(data) and is_due(sock) else data, *more)

    def sendmsg(sock: socket.socket, buffers: Any, *more: Any) -> int:
        if len(buffers) == 2 and is_due(sock):  # the engine's: a header, and a tensor's bytes or address
            buffers = [spoilt(buffers[0]), buffers[1]]
        return original["sendmsg"](sock, buffers, *more)

    def undo() -> None:
        for name in original:
            delattr(socket.socket, name)  # they are the base class's

    socket.socket.send, socket.socket.sendmsg = send, sendmsg
    return True, undo


def close_store(pick: float, executor: int) -> Struck:
    """All connections of the gang's key-value store that this rank has end; at rank 0 those are everybody's."""
    from sparkdl_comm.gang import gang

    ended = 0
    for member in list(gang._gangs):
        for sock in member._store.sockets():
            _end(sock.fileno())
            ended += 1
    return ended or None, _nothing


def full_disk(pick: float, executor: int) -> Struck:
    """No file of this process grows any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, hard))
    return True, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ACTIONS: dict[str, Callable[[float, int], Struck]] = {
    "cut link": cut_link,
    "flip byte": flip_byte,
    "close store": close_store,
    "full disk": full_disk,
}


def addresses(process: int) -> set[Address]:
    """Where a process's own TCP connections end."""
    return {plain(link.laddr) for link in psutil.Process(process).net_connections("tcp")}


def plain(address: Any) -> Address:
    """As IPv4, which a JVM writes as IPv6."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _end(fd: int) -> None:
    """As close() would not: another thread that waits for it sees the end."""
    if fd < 0:
        return
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:
        return  # it was closed meanwhile
    try:
        copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the peer was faster
    finally:
        copy.close()


def _nothing() -> None:
    """There is nothing to be undone."""
