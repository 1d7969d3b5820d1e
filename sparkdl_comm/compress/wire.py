"""Format of selected elements on the network: their values and their positions.

All ranks know the number of entries and the number of elements from which they were selected. So they know the number
of bytes before anything arrives. In this order, little endian:

1. positions, in the smaller layout. For up to 65,536 elements, 2 bytes each. For more elements, either 4 bytes each; or
   the number of entries in every stretch of 65,536 elements, 4 bytes each, then 2 bytes per entry, counted from the
   start of its stretch.
2. values: float32, float16 or bfloat16.
3. flags: one bit each, the first flag in the lowest bit of a byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sparkdl_comm.errors import InputError, ProtocolError

#: Types of values by the name that users choose.
VALUE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_STRETCH = 1 << 16


@dataclass(frozen=True)
class SparseFormat:
    """Format of ``entries`` out of ``elements``, with values of type ``dtype``, and of ``flags`` bits.

    :raises InputError: more entries than elements, or more elements than 4 bytes can number.
    """

    elements: int
    entries: int
    dtype: torch.dtype = torch.float32
    flags: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.entries <= self.elements < 1 << 32:
            raise InputError(
                f"{self.entries} entries of {self.elements} elements. The limit is {(1 << 32) - 1} elements"
            )

    @classmethod
    def of_density(
        cls, elements: int, density: float, dtype: torch.dtype = torch.float32, flags: int = 0
    ) -> SparseFormat:
        """Return the format that sends the fraction ``density`` of the elements, but at least one if there are any.

        ``dtype`` and ``flags`` are those of the class.
        """
        return cls(elements, min(elements, max(1, round(density * elements))), dtype, flags)

    @property
    def nbytes(self) -> int:
        """Number of bytes on the network."""
        return self._positions_end + self.entries * self.dtype.itemsize + math.ceil(self.flags / 8)

    def encode(self, indices: torch.Tensor, values: torch.Tensor, flags: torch.Tensor | None = None) -> torch.Tensor:
        """Return the entries as uint8 ``[nbytes]``, on the device of ``values``.

        :param indices: int64 ``[entries]``, ascending.
        :param values: float32 ``[entries]``. Finite values that the value type cannot hold become its largest one.
        :param flags: bool ``[flags]``.
        """
        packed = values.new_empty(self.nbytes, dtype=torch.uint8)
        stretches, width = self._layout
        if stretches:
            counts = torch.bincount(indices >> 16, minlength=stretches).to(torch.int32)
            packed[: 4 * stretches] = counts.view(torch.uint8)
        # A conversion to fewer bits keeps an integer's lowest bits.
        positions = indices.to(torch.int16 if width == 2 else torch.int32)
        packed[4 * stretches : self._positions_end] = positions.view(torch.uint8)
        packed[self._positions_end : self._values_end] = self._narrow(values).view(torch.uint8)
        if flags is not None:
            packed[self._values_end :] = _pack_flags(flags)
        return packed

    def decode(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (indices, values, flags), the arguments of :meth:`encode`, with rounded values.

        :raises ProtocolError: the bytes do not have this format.
        """
        if packed.numel() != self.nbytes or packed.dtype is not torch.uint8:
            raise ProtocolError(f"received {packed.numel()} x {packed.dtype}, but {self} has {self.nbytes} bytes")
        stretches, width = self._layout
        # Copied, because views of other types need an alignment that a slice of a message may lack.
        positions = packed[4 * stretches : self._positions_end].clone()
        if width == 2:
            indices = positions.view(torch.int16).to(torch.int64) & 0xFFFF
        else:
            indices = positions.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        if stretches:
            counts = packed[: 4 * stretches].clone().view(torch.int32).to(torch.int64)
            if bool((counts < 0).any()) or int(counts.sum()) != self.entries:
                raise ProtocolError(
                    f"{self}: the entry counts of its stretches are negative, or do not add up to the entries"
                )
            starts = torch.arange(stretches, device=packed.device) << 16
            indices += torch.repeat_interleave(starts, counts)
        if self.entries and int(indices.max()) >= self.elements:
            raise ProtocolError(f"{self}: index {int(indices.max())} is out of range")
        values = packed[self._positions_end : self._values_end].clone().view(self.dtype).to(torch.float32)
        return indices, values, _unpack_flags(packed[self._values_end :], self.flags)

    def round_values(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``values`` as the receiver decodes them."""
        return values if self.dtype is torch.float32 else self._narrow(values).to(torch.float32)

    def _narrow(self, values: torch.Tensor) -> torch.Tensor:
        if self.dtype is not torch.float16:
            return values.to(self.dtype)
        largest = torch.finfo(torch.float16).max
        return torch.where(values.isfinite(), values.clamp(-largest, largest), values).to(torch.float16)

    @property
    def _layout(self) -> tuple[int, int]:
        """Layout of the positions: (number of stretches with a count, bytes per position)."""
        if self.elements <= _STRETCH:
            return 0, 2
        stretches = -(-self.elements // _STRETCH)
        return (stretches, 2) if 4 * stretches < 2 * self.entries else (0, 4)

    @property
    def _positions_end(self) -> int:
        """Offset, in bytes, at which the positions end."""
        stretches, width = self._layout
        return 4 * stretches + width * self.entries

    @property
    def _values_end(self) -> int:
        """Offset, in bytes, at which the values end."""
        return self._positions_end + self.entries * self.dtype.itemsize


def _pack_flags(flags: torch.Tensor) -> torch.Tensor:
    bits = flags.new_zeros(math.ceil(len(flags) / 8) * 8, dtype=torch.uint8)
    bits[: len(flags)] = flags
    return (bits.view(-1, 8) << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def _unpack_flags(packed: torch.Tensor, count: int) -> torch.Tensor:
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return bits.view(-1)[:count].bool()
