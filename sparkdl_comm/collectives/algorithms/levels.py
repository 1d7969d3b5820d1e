"""Exchanges level by level: what BML, the peer-to-peer parameter server and hierarchical all-reduce have in common. Pure.

Ranks have an address of one digit per level, and exchange with those that differ from them in that digit alone. Aggregation
over a level of radix n: the range that a rank works on is cut into n parts, part d goes to the one with digit d, which adds
it to its own; then each goes on with its part and the next level. Broadcasting is the reverse.

All n ranks of a group send at once: to the one with the next digit first, then the one after it, so that each receives from
one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparkdl_comm.collectives.plan import Kind, Step, cut


class Level(NamedTuple):
    """Digit ``rank // stride % radix`` of a rank's address; those that differ in it alone are reached over ``rail``."""

    radix: int
    stride: int
    rail: int

    def digit(self, rank: int) -> int:
        return rank // self.stride % self.radix

    def peer(self, rank: int, digit: int) -> int:
        """The rank with this digit, and the other digits of ``rank``."""
        return rank + (digit - self.digit(rank)) * self.stride


def levels_of(radices: Sequence[int], rails: Sequence[int]) -> list[Level]:
    """Levels of ranks that are numbered as their addresses are read, level 0's digit counting fastest."""
    strides = [math.prod(radices[:number]) for number in range(len(radices))]
    return [Level(*level) for level in zip(radices, strides, rails, strict=True)]


class Exchange:
    """One rank's steps over the range ``start`` to ``stop``, through ``levels`` in their order."""

    def __init__(self, rank: int, levels: Sequence[Level], start: int, stop: int) -> None:
        self._rank, self._levels, self._start, self._stop = rank, levels, start, stop
        self._pieces = math.prod(level.radix for level in levels)

    @property
    def own(self) -> tuple[int, int]:
        """The range that the rank ends with after the last level: one piece."""
        first = 0
        for level, lowest, width in self._path():
            first = lowest + level.digit(self._rank) * width
        return self._range(first, 1)

    def aggregation(self) -> list[list[Step]]:
        """The steps of each level."""
        return [self._exchange(Kind.COMBINE, *stage) for stage in self._path()]

    def broadcasting(self) -> list[list[Step]]:
        """The steps of each level, beginning with the last level."""
        return [self._exchange(Kind.RECEIVE, *stage) for stage in reversed(self._path())]

    def _exchange(self, kind: Kind, level: Level, lowest: int, width: int) -> list[Step]:
        """With each neighbour on the level: to combine, it gets its pieces and gives the rank's; to receive, the reverse."""
        own = level.digit(self._rank)
        steps = []
        for turn in range(1, level.radix):
            to, source = (own + turn) % level.radix, (own - turn) % level.radix
            sent, received = (to, own) if kind is Kind.COMBINE else (own, source)
            steps.append(self._step(Kind.SEND, level, to, lowest + sent * width, width))
            steps.append(self._step(kind, level, source, lowest + received * width, width))
        return steps

    def _path(self) -> list[tuple[Level, int, int]]:
        """For each level: it, the first piece that the rank works on there, and how many pieces go to each digit."""
        path = []
        first, pieces = 0, self._pieces
        for level in self._levels:
            width = pieces // level.radix
            path.append((level, first, width))
            first, pieces = first + level.digit(self._rank) * width, width
        return path

    def _range(self, piece: int, pieces: int) -> tuple[int, int]:
        begin, end = (cut(self._start, self._stop, self._pieces, index) for index in (piece, piece + pieces))
        return begin, end

    def _step(self, kind: Kind, level: Level, digit: int, piece: int, pieces: int) -> Step:
        return Step(kind, level.peer(self._rank, digit), level.rail, *self._range(piece, pieces))
