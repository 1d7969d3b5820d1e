"""Trials of compression (``compression.schedule=auto``): sparse or dense steps, whichever take less time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal

from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.strategies.base import StepInfo
from sparkdl_comm.strategies.compressed_exchange import CompressedExchange

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


class TrialExchange(CompressedExchange):
    """Compressed exchange that tries each density of the schedule, and sends whole gradients where these are faster."""

    def __init__(self, gang: Gang, *compressed: Any) -> None:
        """``compressed``: the base class's arguments."""
        super().__init__(*compressed)
        self._gang = gang
        self._trials: dict[float, Trial] = {}
        self._trial: Trial | None = None

    def begin_step(self, info: StepInfo) -> None:
        super().begin_step(info)
        self._trial = None
        if self._density is not None:
            self._trial = self._trials.setdefault(self._density, Trial())
            self._density = self._density if self._trial.kind == "sparse" else None
            self._begin_at = time.perf_counter()

    def end_step(self, applied: bool) -> None:
        super().end_step(applied)
        if self._trial is None:
            return
        self._trial.record(time.perf_counter() - self._begin_at)
        if self._trial.is_due:
            report = json.dumps(self._trial.measurements()).encode()
            self._trial.choose([json.loads(each) for each in self._gang.all_gather(report, self._timeout)])

    def details(self) -> dict[str, Any]:
        """Return ``compression``, one entry for each density that was tried.

        ``density``; ``steps``: the kind of step chosen last (None: not yet); ``seconds``: seconds of a step, by kind, in the
        last trial.
        """
        trials = [
            {"density": density, "steps": trial.chosen, "seconds": trial.seconds}
            for density, trial in self._trials.items()
        ]
        return {"compression": trials} if trials else {}
