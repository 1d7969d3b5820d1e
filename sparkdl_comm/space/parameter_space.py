"""Positions of parameters in one flat vector, from their names and shapes, without a module or autograd.

With every strategy, ranks then exchange one range of memory. Layers or parameters are grouped into buckets that are sent
one after another. The iBatch paper, the conf and the wire call a bucket of layers a batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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

        :param least: minimum number of elements. Only the last bucket may be smaller.
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
        import torch  # the simulator needs none

        finite = torch.isfinite(values)
        if finite.all():
            return set()
        pieces = self.cut(start, len(values))
        return {
            self.entries[p.number].name for p in pieces if not finite[p.start - start : p.start - start + p.count].all()
        }


#: Share of a model, from its end, whose parameters may be gathered while backward is still running.
EARLY_SHARE = 1 / 3


def count_early_buckets(sizes: Sequence[float]) -> int:
    """Return how many buckets lie wholly in the last :data:`EARLY_SHARE` of a model. ``sizes``: of the buckets, in the order
    of backward.
    """
    cumulative = itertools.accumulate(sizes)
    most = sum(sizes) * EARLY_SHARE
    return sum(size <= most for size in cumulative)


def group_into_buckets(sizes: Iterable[float], least: float, first: float | None = None) -> list[range]:
    """Split consecutive items into buckets: ranges of positions, from 0.

    :param sizes: sizes of the items.
    :param least: minimum size of a bucket. Only the last bucket may be smaller.
    :param first: minimum size of the first bucket. None: ``least``.
    """
    buckets: list[range] = []
    begin, end, size, least_now = 0, 0, 0.0, least if first is None else first
    for end, more in enumerate(sizes, 1):
        size += more
        if size >= least_now:
            buckets.append(range(begin, end))
            begin, size, least_now = end, 0.0, least
    return buckets if begin == end else [*buckets, range(begin, end)]


class LayerBuckets:
    """Buckets of consecutive layers, numbered from 0 in the order in which they are sent.

    ``pairs``: first and last layer of each bucket, counted from 1, as planner and executor use them. ``layers``: layers
    of each bucket, counted from 0. ``of``: for each layer, the number of its bucket.
    """

    def __init__(self, pairs: Sequence[Sequence[int]]) -> None:
        self.pairs = [list(pair) for pair in pairs]
        self.layers = [range(first - 1, last) for first, last in self.pairs]
        numbers = {layer: number for number, bucket in enumerate(self.layers) for layer in bucket}
        self.of = [numbers[layer] for layer in range(len(numbers))]

    def __len__(self) -> int:
        return len(self.pairs)


class Countdown:
    """Counter of the outstanding items of each bucket. ``parts``: the layer of each expected item, such as a parameter."""

    def __init__(self, buckets: LayerBuckets, parts: Sequence[int]) -> None:
        self._of = buckets.of
        self._outstanding = [0] * len(buckets)
        for layer in parts:
            self._outstanding[self._of[layer]] += 1

    def arrived(self, layer: int) -> int | None:
        """Count one more item of ``layer``. Return its bucket if the bucket is complete now, else None."""
        bucket = self._of[layer]
        self._outstanding[bucket] -= 1
        return None if self._outstanding[bucket] else bucket
