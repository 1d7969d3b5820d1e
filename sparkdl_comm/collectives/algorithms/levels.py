"""Exchanges level by level, which BML, the peer-to-peer parameter server and hierarchical all-reduce share. Pure.

A rank's address has one digit per level. At each level, a rank exchanges with the ranks that differ from it only in
this digit. Aggregation over a level of radix n cuts the range that a rank works on into n parts. Part d goes to the
rank with digit d, which adds it to its own. Then each rank continues with its part at the next level. Broadcasting is
the reverse.

All n ranks of a group send at once: first to the next digit, then to the one after it. So each rank receives from one
rank at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparkdl_comm.collectives.plan import Step, StepKind, part_start


class Level(NamedTuple):
    """Level of the ranks' addresses: digit ``rank // stride % radix``.

    Ranks that differ only in this digit reach each other over ``rail``.
    """

    radix: int
    stride: int
    rail: int

    def digit(self, rank: int) -> int:
        return rank // self.stride % self.radix

    def peer(self, rank: int, digit: int) -> int:
        """Return the rank that has this digit and otherwise the digits of ``rank``."""
        return rank + (digit - self.digit(rank)) * self.stride


def make_levels(radices: Sequence[int], rails: Sequence[int]) -> list[Level]:
    """Return the levels of ranks that are numbered by their addresses; level 0 has the lowest digit."""
    strides = [math.prod(radices[:number]) for number in range(len(radices))]
    return [Level(*level) for level in zip(radices, strides, rails, strict=True)]


class Exchange:
    """Steps by which one rank sums the range ``start`` to ``stop``, level by level, and spreads the sums back.

    :meth:`aggregate` is a reduce-scatter through ``levels`` in their order. :meth:`broadcast` is the all-gather back.
    """

    def __init__(self, rank: int, levels: Sequence[Level], start: int, stop: int) -> None:
        self._rank, self._levels, self._start, self._stop = rank, levels, start, stop
        self._pieces = math.prod(level.radix for level in levels)

    @property
    def own(self) -> tuple[int, int]:
        """Range that the rank has after the last level: one piece."""
        first = 0
        for level, lowest, width in self._path():
            first = lowest + level.digit(self._rank) * width
        return self._range(first, 1)

    def aggregate(self) -> list[list[Step]]:
        """Return the steps of each level."""
        return [self._exchange(StepKind.COMBINE, *stage) for stage in self._path()]

    def broadcast(self) -> list[list[Step]]:
        """Return the steps of each level, last level first."""
        return [self._exchange(StepKind.RECEIVE, *stage) for stage in reversed(self._path())]

    def _exchange(self, kind: StepKind, level: Level, lowest: int, width: int) -> list[Step]:
        """Return the steps with each neighbor on the level.

        To combine, the rank sends a neighbor the neighbor's pieces and receives its own. To receive, the reverse.
        """
        own = level.digit(self._rank)
        steps = []
        for turn in range(1, level.radix):
            to, source = (own + turn) % level.radix, (own - turn) % level.radix
            sent, received = (to, own) if kind is StepKind.COMBINE else (own, source)
            steps.append(self._step(StepKind.SEND, level, to, lowest + sent * width, width))
            steps.append(self._step(kind, level, source, lowest + received * width, width))
        return steps

    def _path(self) -> list[tuple[Level, int, int]]:
        """Return for each level (level, first piece that the rank works on there, number of pieces that go to each digit)."""
        path = []
        first, pieces = 0, self._pieces
        for level in self._levels:
            width = pieces // level.radix
            path.append((level, first, width))
            first, pieces = first + level.digit(self._rank) * width, width
        return path

    def _range(self, piece: int, pieces: int) -> tuple[int, int]:
        begin, end = (part_start(self._start, self._stop, self._pieces, index) for index in (piece, piece + pieces))
        return begin, end

    def _step(self, kind: StepKind, level: Level, digit: int, piece: int, pieces: int) -> Step:
        return Step(kind, level.peer(self._rank, digit), level.rail, *self._range(piece, pieces))
