"""Positions of parameters in one flat vector, from their names and shapes, without a module or autograd.

With every strategy, ranks then exchange one range of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from sparkdl_comm.space.layer_buckets import group_into_buckets


@dataclass(frozen=True)
class Layer:
    """Owner of parameters, which lie one after another from element ``start`` on."""

    name: str
    start: int
    count: int


@dataclass(frozen=True)
class Entry:
    """Position of a parameter in the flat vector.

    :param layer: number of the layer that it belongs to.
    :param start: its first element in the flat vector.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    start: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the parameter in ``flat``, a vector of the whole space."""
        return flat[self.start : self.start + self.count].view(self.shape)


@dataclass(frozen=True)
class Piece:
    """``count`` elements of the flat vector from ``start`` on, all of the parameter ``number`` (in the space's
    entries).
    """

    start: int
    count: int
    number: int


class ParameterSpace:
    """Parameters one after another, in the given order.

    A parameter's name up to its last dot is the name of its layer. The parameters of a layer must be consecutive.

    :param shapes: shape by parameter name. Parameters without elements are left out.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.entries: list[Entry] = []
        self.layers: list[Layer] = []
        #: Elements of the flat vector.
        self.count = 0
        for name, shape in shapes.items():
            size, owner = math.prod(shape), name.rpartition(".")[0]
            if not size:
                continue
            last = self.layers.pop() if self.layers and self.layers[-1].name == owner else Layer(owner, self.count, 0)
            self.layers.append(Layer(owner, last.start, last.count + size))
            self.entries.append(Entry(name, tuple(shape), len(self.layers) - 1, self.count))
            self.count += size
        #: Number of the layer (in :attr:`layers`) of each of :attr:`entries`.
        self.layer_of_each = [entry.layer for entry in self.entries]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the parameters in ``flat``, a vector of the whole space."""
        return [entry.view(flat) for entry in self.entries]

    def stretch(self, layers: range) -> slice:
        """Return the range of consecutive layers in the flat vector."""
        last = self.layers[layers[-1]]
        return slice(self.layers[layers[0]].start, last.start + last.count)

    def cut(self, start: int, count: int) -> list[Piece]:
        """Return the range as pieces that end where parameters end."""
        pieces = []
        for number, entry in enumerate(self.entries):
            begin = max(start, entry.start)
            end = min(start + count, entry.start + entry.count)
            if begin < end:
                pieces.append(Piece(begin, end - begin, number))
        return pieces

    def buckets(self, least: float) -> list[tuple[int, int]]:
        """Split the vector into buckets that end where parameters end, from its end to its beginning: (first element,
        end).

        :param least: least number of elements. Only the last bucket may be smaller.
        """
        backwards = self.entries[::-1]
        parts = (
            backwards[part.start : part.stop]
            for part in group_into_buckets((entry.count for entry in backwards), least)
        )
        return [(part[-1].start, part[0].start + part[0].count) for part in parts]

    def not_finite(self, start: int, values: torch.Tensor) -> set[str]:
        """Return the names of the parameters with NaN or infinity in ``values``, the elements from ``start`` on of a
        flat vector.
        """
        finite = torch.isfinite(values)
        if finite.all():
            return set()
        pieces = self.cut(start, len(values))
        return {
            self.entries[p.number].name for p in pieces if not finite[p.start - start : p.start - start + p.count].all()
        }
