"""What travels between the daemons of the fabric over the rails: one-sided messages, each a header of fixed size and its
bytes.

A message is what one rail takes of a transfer: of an update, of a sum of updates, or of a model. The receiver knows what is
to come, from the scheduler, so that a header is compared with it before anything is allocated.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass

from sparkdl_comm.errors import ProtocolError

#: kind, updates in the sum, id, base version, norm, offset, length, next hop; then the checksums of these, and of the bytes.
_FIELDS = struct.Struct("!BIQqdQQi")
_CRCS = struct.Struct("!II")
HEADER_BYTES = _FIELDS.size + _CRCS.size
#: As next hop: the message ends at its receiver.
NOWHERE = -1


class Kind(enum.IntEnum):
    UPDATE = 1
    MODEL = 2
    STATE = 3  # of a server: parameters, then the last step if there is momentum


@dataclass(frozen=True)
class Header:
    """``id``: of the transfer, as the scheduler numbers them. ``count``: updates in the sum. ``base_version``: of the model
    that the update was computed from; of a sum, the least of (base version - place in the sum), so that the largest delay in
    it is the server's version minus this; of a model, its version. ``norm``: L2, of the update, or an upper bound of the
    sum's. ``offset``, ``length``: in bytes, where in the transfer the message's bytes are. ``next_hop``: the rank to which
    the receiver forwards it."""

    kind: Kind
    id: int = 0
    base_version: int = 0
    norm: float = 0.0
    count: int = 0
    offset: int = 0
    length: int = 0
    next_hop: int = NOWHERE

    def pack(self, data: memoryview) -> bytes:
        """The header with the checksums; ``data``: the bytes that follow."""
        fields = _FIELDS.pack(
            self.kind, self.count, self.id, self.base_version, self.norm, self.offset, self.length, self.next_hop
        )
        return fields + _CRCS.pack(zlib.crc32(fields), zlib.crc32(data))

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Header, int]:
        """The header in ``data`` (``HEADER_BYTES``), and the CRC-32 of the bytes that follow.

        :raises ProtocolError: it is damaged, or there is no such kind of message.
        """
        crc, crc_of_bytes = _CRCS.unpack_from(data, _FIELDS.size)
        if zlib.crc32(data[: _FIELDS.size]) != crc:
            raise ProtocolError("a message came whose header has another checksum than its bytes")
        kind, count, number, base, norm, offset, length, hop = _FIELDS.unpack_from(data)
        try:
            header = cls(Kind(kind), number, base, norm, count, offset, length, hop)
        except ValueError as exc:
            raise ProtocolError(f"a message of kind {kind} came, which there is not") from exc
        return header, crc_of_bytes

    @property
    def named(self) -> str:
        """For people."""
        what = {Kind.MODEL: "the model", Kind.STATE: "a server's state"}.get(self.kind, f"{self.count} update(s)")
        return f"transfer {self.id} ({what}, version {self.base_version})"
