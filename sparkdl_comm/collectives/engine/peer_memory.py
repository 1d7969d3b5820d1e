"""Memory of a peer that runs on the same host: a receiver copies a message from the sender's process.

The kernel copies between the two processes (``process_vm_readv``), so a byte is copied once, where a connection over TCP
copies it twice and divides it into packets. The sender sends only the address, and must not change the message until the
receiver has confirmed it.

Each engine has a stamp, random bytes at a fixed address. Every read also reads the peer's stamp, after the message. The
sender clears its stamp before it may change a message that was not confirmed. So a read that finds the stamp got the whole
message, from the process that sent the stamp through the gang.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import struct
from collections.abc import Callable, Iterable
from typing import Any

_STAMP_BYTES = 16
#: Process id, address of the stamp, and the stamp.
_DESCRIPTION = struct.Struct(f"!QQ{_STAMP_BYTES}s")

#: Options of prctl(2): which process may trace this one where Yama restricts that, and "any of this user".
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)


class _Range(ctypes.Structure):
    """``struct iovec`` of C: a range of memory."""

    _fields_ = (("address", ctypes.c_void_p), ("count", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_read: Any = getattr(_libc, "process_vm_readv", None)  # only Linux has it
if _read is not None:
    _ranges = ctypes.POINTER(_Range)
    _read.restype = ctypes.c_ssize_t
    _read.argtypes = [ctypes.c_int, _ranges, ctypes.c_ulong, _ranges, ctypes.c_ulong, ctypes.c_ulong]


#: Function that sends bytes to all ranks of a group and returns the bytes of each rank, by rank.
Gather = Callable[[bytes], list[bytes]]


class OwnMemory:
    """Memory of this process, as peers read it. ``description``: bytes for a peer's :class:`PeerMemory`."""

    def __init__(self) -> None:
        stamp = secrets.token_bytes(_STAMP_BYTES)
        self._stamp = (ctypes.c_char * _STAMP_BYTES).from_buffer_copy(stamp)
        self.description = _DESCRIPTION.pack(os.getpid(), ctypes.addressof(self._stamp), stamp)

    def find_peers(
        self, rank: int, neighbors: Iterable[int], gather: Gather, *, is_allowed: bool
    ) -> dict[int, PeerMemory]:
        """Return the memory of the neighbors that can read this process, and that this process can read, by rank.

        All ranks of the group must call it. Where Yama restricts tracing, all programs of this user may trace this process
        from now on until it ends.

        :param rank: this rank's number in the group.
        :param neighbors: ranks with this rank's address.
        :param is_allowed: False: return none.
        """
        if is_allowed and _read is not None:
            # Fails where Yama is not active, and then nothing has to be permitted.
            _libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
        descriptions = gather(self.description if is_allowed else b"")
        candidates = [peer for peer in neighbors if is_allowed and descriptions[peer]]
        memories = {peer: PeerMemory(descriptions[peer]) for peer in candidates}
        readable = [peer for peer, memory in memories.items() if memory.is_readable()]
        answers = gather(json.dumps(readable).encode())
        return {peer: memories[peer] for peer in readable if rank in json.loads(answers[peer])}

    def clear_stamp(self) -> None:
        """Make reads fail that end after this call. Call it before messages change that were not confirmed."""
        ctypes.memset(self._stamp, 0, _STAMP_BYTES)


class PeerMemory:
    """Memory of the peer that sent ``description``, which is :attr:`OwnMemory.description`. For one thread."""

    def __init__(self, description: bytes) -> None:
        self._process, stamp_address, self._expected = _DESCRIPTION.unpack(description)
        self._stamp = (ctypes.c_char * _STAMP_BYTES)()
        self._local, self._remote = (_Range * 2)(), (_Range * 2)()
        self._local[1] = _Range(ctypes.addressof(self._stamp), _STAMP_BYTES)
        self._remote[1] = _Range(stamp_address, _STAMP_BYTES)

    def is_readable(self) -> bool:
        """Return whether this process can read the peer. It cannot if the peer runs elsewhere, for example in another
        container, or if the system forbids it.
        """
        if _read is None:
            return False
        try:
            self.read(0, 0, 0)
        except OSError:
            return False
        return True

    def read(self, source: int, target: int, count: int) -> None:
        """Copy ``count`` bytes from the peer's address ``source`` to this process's address ``target``.

        :raises OSError: the peer is gone, it has cleared its stamp, or the system forbids the read.
        """
        local, remote = self._local, self._remote
        local[0].address, local[0].count = target, count
        remote[0].address, remote[0].count = source, count
        done = _read(self._process, local, 2, remote, 2, 0)
        if done < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"its memory cannot be read: {os.strerror(number)}")
        if done != count + _STAMP_BYTES:
            raise ConnectionResetError(f"{done} of {count + _STAMP_BYTES} bytes of its memory can be read")
        if self._stamp.raw != self._expected:
            raise ConnectionResetError("the peer has failed, so its message may have changed")
