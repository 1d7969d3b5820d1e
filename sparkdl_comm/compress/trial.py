"""Trial of dense and sparse steps, to find out which are faster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

Kind = Literal["dense", "sparse"]
KINDS: tuple[Kind, Kind] = "dense", "sparse"

#: Number of blocks that a trial has of each kind, and number of steps in a block; the kinds alternate. The first step of a
#: block is not measured: a dense one also sends the residual, and caches are cold after the change of kind.
_BLOCKS, _STEPS = 2, 4

#: Fraction by which sparse steps must be faster to be chosen. Less may be chance, and dense steps are exact.
_MARGIN = 0.02

#: Fraction of the time that further trials may cost, and the least number of steps between two trials.
_COST, _LEAST_PAUSE = 0.01, 100


class Trial:
    """Trial of one density: blocks of dense and of sparse steps alternate until all ranks choose.

    The choice is tried again later, because links change, and because the first steps of a run are slower than later
    ones, by different amounts for each kind. The pause is long enough that the next trial costs a hundredth of the time
    until then. The cost is estimated from this trial: how much slower the slower kind was, and how much longer the
    trial's steps took than the steps before it.

    ``chosen``: the kind that was chosen last; None before :meth:`choose`.
    """

    def __init__(self) -> None:
        self._taken: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
        self._all: list[float] = []  # seconds of this trial's steps, with the unmeasured ones
        self._between: list[float] = []  # seconds of the steps since the last trial
        self._pause = 0
        self.chosen: Kind | None = None
        #: Seconds of a step in the last trial, by kind; empty before :meth:`choose`.
        self.seconds: dict[Kind, float] = {}

    @property
    def kind(self) -> Kind:
        """Kind of the next step, or of the step under way."""
        if self._pause and self.chosen:
            return self.chosen
        return KINDS[len(self._all) // _STEPS % 2]

    @property
    def is_due(self) -> bool:
        """True if all ranks must choose now."""
        return len(self._all) == 2 * _BLOCKS * _STEPS

    def took(self, seconds: float) -> None:
        """Record the seconds that the step took."""
        if self._pause:
            self._pause -= 1
            self._between.append(seconds)
            return
        if len(self._all) % _STEPS:
            self._taken[self.kind].append(seconds)
        self._all.append(seconds)

    def measured(self) -> dict[str, float]:
        """Return this rank's median seconds of a ``dense`` and a ``sparse`` step, and ``lost``, the cost of the trial.

        ``lost``: extra time of the trial's steps, divided by the mean time of the steps before it.
        """
        lost = sum(self._all) / fmean(self._between) - len(self._all) if self._between else 0.0
        return {**{kind: median(taken) for kind, taken in self._taken.items()}, "lost": lost}

    def choose(self, of_ranks: Sequence[Mapping[str, float]]) -> None:
        """Choose a kind by what each rank :meth:`measured`. The slowest rank counts, since all others wait for it."""
        self.seconds = {kind: max(told[kind] for told in of_ranks) for kind in KINDS}
        self.chosen = "sparse" if self.seconds["sparse"] < (1 - _MARGIN) * self.seconds["dense"] else "dense"
        slower = max(self.seconds.values()) / min(self.seconds.values()) - 1
        lost = max(_BLOCKS * _STEPS * slower, *(told["lost"] for told in of_ranks))
        self._pause = max(_LEAST_PAUSE, math.ceil(lost / _COST))
        self._taken = {kind: [] for kind in KINDS}
        self._all, self._between = [], []
