"""Range of the flat vector, cut into the pieces of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch


class FlatRange(NamedTuple):
    """Elements from ``start`` to ``stop`` of the flat vector.

    ``pieces``: for each parameter with elements in the range, their slice, counted from ``start``.
    """

    start: int
    stop: int
    pieces: tuple[slice, ...]

    @property
    def elements(self) -> int:
        return self.stop - self.start

    @classmethod
    def of(cls, start: int, stop: int, bounds: Sequence[int]) -> FlatRange:
        """Return the part. ``bounds``: starts of the parameters in the flat vector, ascending."""
        inside = [start, *(bound for bound in bounds if start < bound < stop), stop]
        pieces = zip(inside, inside[1:], strict=False)
        return cls(start, stop, tuple(slice(a - start, b - start) for a, b in pieces if a < b))

    def find_used(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return bool ``[pieces]``: for each piece, True if a step used its parameter.

        ``gradient``, float32 of the part, is -0.0 for unused parameters; see ``space/flat.py``. For a used Embedding
        with sparse=True, single rows may be -0.0, even the first one.
        """
        firsts = gradient[
            torch.tensor([piece.start for piece in self.pieces], dtype=torch.int64, device=gradient.device)
        ]
        used = (firsts != 0) | ~firsts.signbit()
        for number in (~used).nonzero().flatten().tolist():
            piece = gradient[self.pieces[number]]
            used[number] = ((piece != 0) | ~piece.signbit()).any()
        return used

    def select(self, mask: torch.Tensor) -> list[slice]:
        """Return the pieces for which ``mask``, bool ``[pieces]``, is True."""
        return [self.pieces[number] for number in mask.nonzero().flatten().tolist()]

    def find_unused(self, gradient: torch.Tensor) -> list[slice]:
        """Return the pieces of unused parameters."""
        return self.select(~self.find_used(gradient))


#: Function that returns the part of the flat vector from one element to another.
RangeFactory = Callable[[int, int], FlatRange]
