"""Data messages between the daemons over the rails. Each is a header of fixed size, followed by its bytes.

A message carries the part of one transfer that uses one rail: part of an update, of a sum of updates, or of a model.
The scheduler announces each transfer to its receiver. So the receiver checks a header before it allocates memory.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass

from sparkdl_comm.errors import ProtocolError

#: Kind, updates in the sum, id, base version, norm, offset, length, next hop. Two checksums follow: of these fields,
#: then of the bytes.
_FIELDS = struct.Struct("!BIQqdQQi")
_CRCS = struct.Struct("!II")
HEADER_BYTES = _FIELDS.size + _CRCS.size
#: Next hop of a message that ends at its receiver.
NO_NEXT_HOP = -1


class Kind(enum.IntEnum):
    """Content of a transfer."""

    UPDATE = 1
    MODEL = 2
    STATE = 3  # a server's parameters, then its last step if there is momentum


@dataclass(frozen=True)
class Header:
    """Header of a message.

    - ``id``: the transfer's number at the scheduler.
    - ``base_version``: of an update, the model version that it was computed from. Of a sum, the minimum over its
      updates of base version minus place in the sum. The server's version minus this minimum is the largest delay in
      the sum. Of a model, its version.
    - ``norm``: L2 norm of the update; of a sum, an upper bound.
    - ``count``: updates in the sum.
    - ``offset``, ``length``: position of the message's bytes in the transfer, in bytes.
    - ``next_hop``: the rank to which the receiver forwards the data, or ``NO_NEXT_HOP``.
    """

    kind: Kind
    id: int = 0
    base_version: int = 0
    norm: float = 0.0
    count: int = 0
    offset: int = 0
    length: int = 0
    next_hop: int = NO_NEXT_HOP

    def pack(self, data: memoryview) -> bytes:
        """Return the header with both checksums. ``data``: the bytes that follow it."""
        fields = _FIELDS.pack(
            self.kind, self.count, self.id, self.base_version, self.norm, self.offset, self.length, self.next_hop
        )
        return fields + _CRCS.pack(zlib.crc32(fields), zlib.crc32(data))

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Header, int]:
        """Parse ``HEADER_BYTES`` bytes. Return the header and the expected CRC-32 of the bytes that follow.

        :raises ProtocolError: the header is damaged, or its kind is unknown.
        """
        crc, crc_of_bytes = _CRCS.unpack_from(data, _FIELDS.size)
        if zlib.crc32(data[: _FIELDS.size]) != crc:
            raise ProtocolError("the checksum of a message header does not match")
        kind, count, number, base, norm, offset, length, hop = _FIELDS.unpack_from(data)
        try:
            header = cls(Kind(kind), number, base, norm, count, offset, length, hop)
        except ValueError as exc:
            raise ProtocolError(f"unknown message kind {kind}") from exc
        return header, crc_of_bytes

    @property
    def description(self) -> str:
        """Name of the transfer for messages to people."""
        content = {Kind.MODEL: "the model", Kind.STATE: "a server's state"}.get(self.kind, f"{self.count} update(s)")
        return f"transfer {self.id} ({content}, version {self.base_version})"
