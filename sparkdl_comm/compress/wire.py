"""What selected elements are on the network: their values, and where they belong.

All ranks know the number of entries and of the elements that they were selected of, so that they know the number of bytes
before anything arrives. Behind one another, little endian:

1. positions, in the layout that takes least: for up to 65,536 elements 2 bytes each; else 4 bytes each, or the number of
   entries in every 65,536 elements, 4 bytes each, and then 2 bytes for each entry, counted from where its 65,536 begin;
2. values: float32, float16 or bfloat16;
3. flags, a bit for each of them, the first in a byte's lowest bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sparkdl_comm.errors import InputError, ProtocolError

#: By the name that users choose.
VALUE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_STRETCH = 1 << 16


@dataclass(frozen=True)
class SparseFormat:
    """``entries`` of ``elements``, with values of type ``dtype``, and ``flags`` bits.

    :raises InputError: more entries than elements, or more elements than 4 bytes can tell.
    """

    elements: int
    entries: int
    dtype: torch.dtype = torch.float32
    flags: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.entries <= self.elements < 1 << 32:
            raise InputError(f"{self.entries} entries of {self.elements} elements: these are at most {(1 << 32) - 1}")

    @classmethod
    def of_density(
        cls, elements: int, density: float, dtype: torch.dtype = torch.float32, flags: int = 0
    ) -> SparseFormat:
        """Of that share of the elements, and of one at least if there are any."""
        return cls(elements, min(elements, max(1, round(density * elements))), dtype, flags)

    @property
    def nbytes(self) -> int:
        """On the network."""
        return self._positions + self.entries * self.dtype.itemsize + math.ceil(self.flags / 8)

    def encode(self, indices: torch.Tensor, values: torch.Tensor, flags: torch.Tensor | None = None) -> torch.Tensor:
        """The entries as uint8 ``[nbytes]``, on the device of ``values``.

        :param indices: int64 ``[entries]``, ascending.
        :param values: float32 ``[entries]``. Finite ones that the value type cannot hold become its largest.
        :param flags: bool ``[flags]``.
        """
        packed = values.new_empty(self.nbytes, dtype=torch.uint8)
        stretches, width = self._layout
        if stretches:
            counts = torch.bincount(indices >> 16, minlength=stretches).to(torch.int32)
            packed[: 4 * stretches] = counts.view(torch.uint8)
        # To fewer bits an integer is cut to its lowest ones.
        positions = indices.to(torch.int16 if width == 2 else torch.int32)
        packed[4 * stretches : self._positions] = positions.view(torch.uint8)
        packed[self._positions : self._values] = self._narrow(values).view(torch.uint8)
        if flags is not None:
            packed[self._values :] = _pack(flags)
        return packed

    def decode(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(indices, values, flags) as :meth:`encode` took them; values as they are after rounding.

        :raises ProtocolError: these are not such entries.
        """
        if packed.numel() != self.nbytes or packed.dtype is not torch.uint8:
            raise ProtocolError(f"{packed.numel()} x {packed.dtype}, where {self} has {self.nbytes} bytes")
        stretches, width = self._layout
        # Views of other types need an alignment that a part of a message may not have.
        positions = packed[4 * stretches : self._positions].clone()
        if width == 2:
            indices = positions.view(torch.int16).to(torch.int64) & 0xFFFF
        else:
            indices = positions.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        if stretches:
            counts = packed[: 4 * stretches].clone().view(torch.int32).to(torch.int64)
            if bool((counts < 0).any()) or int(counts.sum()) != self.entries:
                raise ProtocolError(f"{self}: counts of its stretches are negative, or have another sum")
            starts = torch.arange(stretches, device=packed.device) << 16
            indices += torch.repeat_interleave(starts, counts)
        if self.entries and int(indices.max()) >= self.elements:
            raise ProtocolError(f"{self}: element {int(indices.max())} is none of it")
        values = packed[self._positions : self._values].clone().view(self.dtype).to(torch.float32)
        return indices, values, _unpack(packed[self._values :], self.flags)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """``values`` as who decodes them has them."""
        return values if self.dtype is torch.float32 else self._narrow(values).to(torch.float32)

    def _narrow(self, values: torch.Tensor) -> torch.Tensor:
        if self.dtype is not torch.float16:
            return values.to(self.dtype)
        largest = torch.finfo(torch.float16).max
        return torch.where(values.isfinite(), values.clamp(-largest, largest), values).to(torch.float16)

    @property
    def _layout(self) -> tuple[int, int]:
        """(stretches whose entries are counted, bytes of each position)"""
        if self.elements <= _STRETCH:
            return 0, 2
        stretches = -(-self.elements // _STRETCH)
        return (stretches, 2) if 4 * stretches < 2 * self.entries else (0, 4)

    @property
    def _positions(self) -> int:
        """Where they end."""
        stretches, width = self._layout
        return 4 * stretches + width * self.entries

    @property
    def _values(self) -> int:
        """Where they end."""
        return self._positions + self.entries * self.dtype.itemsize


def _pack(flags: torch.Tensor) -> torch.Tensor:
    bits = flags.new_zeros(math.ceil(len(flags) / 8) * 8, dtype=torch.uint8)
    bits[: len(flags)] = flags
    return (bits.view(-1, 8) << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def _unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return bits.view(-1)[:count].bool()
