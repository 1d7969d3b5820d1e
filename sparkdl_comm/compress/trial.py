"""Whether steps are faster with sparse gradients than with dense ones, found out by trying both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

Kind = Literal["dense", "sparse"]
KINDS: tuple[Kind, Kind] = "dense", "sparse"

#: Blocks of steps of one kind, in turn; how many a trial has of each kind, and the steps of one. The first step of a block is
#: not measured: a dense one also carries what sparse ones left out, and whatever a kind has not used lately is cold.
_BLOCKS, _STEPS = 2, 4

#: The share by which sparse steps must be faster to be taken: less is chance, and dense ones are exact.
_MARGIN = 0.02

#: The share of the time that further trials may take, and the least number of steps between two of them.
_COST, _LEAST_PAUSE = 0.01, 100


class Trial:
    """Of one density: blocks of steps are dense and sparse in turn, until all ranks choose.

    The choice is tried again after a while: the first steps of a run are slower than later ones, and not those of both kinds
    by as much, and links change. That is so late that the next trial costs a hundredth of the time until then, as far as this
    one tells: by how much steps of the slower kind are slower, and by how much its steps took longer than those before it.

    ``chosen``: the kind that was chosen last; None before :meth:`choose`.
    """

    def __init__(self) -> None:
        self._taken: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
        self._all: list[float] = []  # what steps of this trial took, the unmeasured ones too
        self._between: list[float] = []  # what those since the last trial took
        self._pause = 0
        self.chosen: Kind | None = None
        #: By kind, what a step was found to take in the last trial; empty before :meth:`choose`.
        self.seconds: dict[Kind, float] = {}

    @property
    def kind(self) -> Kind:
        """Of the step that is next, or under way."""
        if self._pause and self.chosen:
            return self.chosen
        return KINDS[len(self._all) // _STEPS % 2]

    @property
    def is_due(self) -> bool:
        """Whether all ranks are to choose now."""
        return len(self._all) == 2 * _BLOCKS * _STEPS

    def took(self, seconds: float) -> None:
        """Notes what the step took."""
        if self._pause:
            self._pause -= 1
            self._between.append(seconds)
            return
        if len(self._all) % _STEPS:
            self._taken[self.kind].append(seconds)
        self._all.append(seconds)

    def measured(self) -> dict[str, float]:
        """This rank's median by kind, and ``lost``: for how many of the steps before it the trial's steps took longer."""
        lost = sum(self._all) / fmean(self._between) - len(self._all) if self._between else 0.0
        return {**{kind: median(taken) for kind, taken in self._taken.items()}, "lost": lost}

    def choose(self, of_ranks: Sequence[Mapping[str, float]]) -> None:
        """``of_ranks``: what each rank :meth:`measured`. The slowest one's count, since all others wait for it."""
        self.seconds = {kind: max(told[kind] for told in of_ranks) for kind in KINDS}
        self.chosen = "sparse" if self.seconds["sparse"] < (1 - _MARGIN) * self.seconds["dense"] else "dense"
        slower = max(self.seconds.values()) / min(self.seconds.values()) - 1
        lost = max(_BLOCKS * _STEPS * slower, *(told["lost"] for told in of_ranks))
        self._pause = max(_LEAST_PAUSE, math.ceil(lost / _COST))
        self._taken = {kind: [] for kind in KINDS}
        self._all, self._between = [], []
