"""A range of the flat vector, and what a gradient of it says about parameters that were not used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch


class Part(NamedTuple):
    """The elements from ``start`` to ``stop`` of the flat vector. ``pieces``: of its own elements, from 0, those of each
    parameter that has some there."""

    start: int
    stop: int
    pieces: tuple[slice, ...]

    @property
    def elements(self) -> int:
        return self.stop - self.start

    @classmethod
    def of(cls, start: int, stop: int, bounds: Sequence[int]) -> Part:
        """``bounds``: where parameters begin in the flat vector, ascending."""
        inside = [start, *(bound for bound in bounds if start < bound < stop), stop]
        pieces = zip(inside, inside[1:], strict=False)
        return cls(start, stop, tuple(slice(a - start, b - start) for a, b in pieces if a < b))

    def used(self, gradient: torch.Tensor) -> torch.Tensor:
        """bool ``[pieces]``: whether a gradient, float32 of the part, is that of a parameter that was used; see
        ``space/flat.py``. Of an Embedding with sparse=True single rows may be -0.0, the first too."""
        firsts = gradient[
            torch.tensor([piece.start for piece in self.pieces], dtype=torch.int64, device=gradient.device)
        ]
        used = (firsts != 0) | ~firsts.signbit()
        for number in (~used).nonzero().flatten().tolist():
            piece = gradient[self.pieces[number]]
            used[number] = ((piece != 0) | ~piece.signbit()).any()
        return used

    def that(self, which: torch.Tensor) -> list[slice]:
        """Those pieces of which ``which``, bool ``[pieces]``, is true."""
        return [self.pieces[number] for number in which.nonzero().flatten().tolist()]

    def unused(self, gradient: torch.Tensor) -> list[slice]:
        """The pieces that are not :meth:`used`."""
        return self.that(~self.used(gradient))


#: The part of the flat vector from one element to another.
PartOf = Callable[[int, int], Part]
