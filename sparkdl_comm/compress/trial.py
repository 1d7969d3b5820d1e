"""Trial of dense and sparse steps, to find out which are faster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

GradientKind = Literal["dense", "sparse"]
KINDS: tuple[GradientKind, GradientKind] = "dense", "sparse"

#: Number of blocks that a trial has of each kind, and number of steps in a block; the kinds alternate. The first step of a
#: block is not measured: a dense one also sends the residual, and caches are cold after the change of kind.
_BLOCKS_PER_KIND, _STEPS_PER_BLOCK = 2, 4

#: Fraction by which sparse steps must be faster to be chosen. Less may be chance, and dense steps are exact.
_MARGIN = 0.02

#: Fraction of the time that further trials may cost, and the least number of steps between two trials.
_MAX_COST_FRACTION, _MIN_PAUSE_STEPS = 0.01, 100


class Trial:
    """Trial of one density: blocks of dense and of sparse steps alternate until all ranks choose.

    The choice is tried again later, because links change, and because the first steps of a run are slower than later
    ones, by different amounts for each kind. The pause is long enough that the next trial costs a hundredth of the time
    until then. The cost is estimated from this trial: how much slower the slower kind was, and how much longer the
    trial's steps took than the steps before it.

    ``chosen``: the kind that was chosen last; None before :meth:`choose`.
    """

    def __init__(self) -> None:
        self._measured_seconds: dict[GradientKind, list[float]] = {kind: [] for kind in KINDS}
        self._trial_seconds: list[float] = []  # seconds of this trial's steps, with the unmeasured ones
        self._seconds_between: list[float] = []  # seconds of the steps since the last trial
        self._pause_steps = 0
        self.chosen: GradientKind | None = None
        #: Seconds of a step in the last trial, by kind; empty before :meth:`choose`.
        self.seconds: dict[GradientKind, float] = {}

    @property
    def kind(self) -> GradientKind:
        """Kind of the next step, or of the step under way."""
        if self._pause_steps and self.chosen:
            return self.chosen
        return KINDS[len(self._trial_seconds) // _STEPS_PER_BLOCK % 2]

    @property
    def is_due(self) -> bool:
        """True if all ranks must choose now."""
        return len(self._trial_seconds) == 2 * _BLOCKS_PER_KIND * _STEPS_PER_BLOCK

    def record(self, seconds: float) -> None:
        """Record the seconds that the step took."""
        if self._pause_steps:
            self._pause_steps -= 1
            self._seconds_between.append(seconds)
            return
        if len(self._trial_seconds) % _STEPS_PER_BLOCK:
            self._measured_seconds[self.kind].append(seconds)
        self._trial_seconds.append(seconds)

    def measurements(self) -> dict[str, float]:
        """Return this rank's median seconds of a ``dense`` and a ``sparse`` step, and ``lost``, the cost of the trial.

        ``lost``: extra time of the trial's steps, divided by the mean time of the steps before it.
        """
        lost = (
            sum(self._trial_seconds) / fmean(self._seconds_between) - len(self._trial_seconds)
            if self._seconds_between
            else 0.0
        )
        return {**{kind: median(taken) for kind, taken in self._measured_seconds.items()}, "lost": lost}

    def choose(self, rank_measurements: Sequence[Mapping[str, float]]) -> None:
        """Choose a kind by the :meth:`measurements` of all ranks. The slowest rank counts, since all others wait for it."""
        self.seconds = {kind: max(measured[kind] for measured in rank_measurements) for kind in KINDS}
        self.chosen = "sparse" if self.seconds["sparse"] < (1 - _MARGIN) * self.seconds["dense"] else "dense"
        slower = max(self.seconds.values()) / min(self.seconds.values()) - 1
        lost = max(_BLOCKS_PER_KIND * _STEPS_PER_BLOCK * slower, *(measured["lost"] for measured in rank_measurements))
        self._pause_steps = max(_MIN_PAUSE_STEPS, math.ceil(lost / _MAX_COST_FRACTION))
        self._measured_seconds = {kind: [] for kind in KINDS}
        self._trial_seconds, self._seconds_between = [], []
