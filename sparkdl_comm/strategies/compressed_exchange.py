"""Exchange of compressed gradient buckets, in the steps that the schedule selects, or that a trial finds faster."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.stages import StageRunner
from sparkdl_comm.compress.sums import CompressedSum, density_at
from sparkdl_comm.conf import CommConf, Compression
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.strategies.base import StepInfo
from sparkdl_comm.strategies.exchange import CollectiveExchange

GradientKind = Literal["dense", "sparse"]
KINDS: tuple[GradientKind, GradientKind] = "dense", "sparse"

#: Number of blocks that a trial has of each kind, and number of steps in a block; the kinds alternate. The first step of a
#: block is not measured: a dense one also sends the residual, and caches are cold after the change of kind.
_BLOCKS_PER_KIND, _STEPS_PER_BLOCK = 2, 4

#: Fraction by which sparse steps must be faster to be chosen. Less may be chance, and dense steps are exact.
_MARGIN = 0.02

#: Fraction of the time that further trials may cost, and the least number of steps between two trials.
_MAX_COST_FRACTION, _MIN_PAUSE_STEPS = 0.01, 100


#: Lower bound of the learning rate that scales residuals. The rate may be 0 in the first step of a warm-up.
_LEAST_RATE = 1e-6


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


class CompressedExchange(CollectiveExchange):
    """Exchange that sums compressed gradients. Dense steps use the base class's all-reduces, which also carry the residuals.

    With momentum correction the optimizer is plain SGD. A residual is then kept multiplied by the learning rate of its step:
    otherwise it would lose weight while the rate falls. This is Algorithm 2 of Sai Praneeth Karimireddy, Quentin Rebjock,
    Sebastian Stich and Martin Jaggi: "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019. Other
    optimizers keep momentum of gradients or are not linear in them, so their residuals are kept unscaled.
    """

    def __init__(
        self, compressed: CompressedSum, compression: Compression, conf: CommConf, gang: Gang, *dense: Any
    ) -> None:
        """``compression``: that of ``conf``, or the strategy's default. ``dense``: the base class's arguments."""
        super().__init__(*dense)
        self._gang = gang
        self._compressed, self._feedback = compressed, compressed.feedback
        self._compression, self._schedule, self._timeout = compression, conf.compression.schedule, conf.timeout
        self._momentum = conf.compression.momentum
        self._stages = StageRunner("sparkdl-comm-compression")
        self._trials: dict[float, Trial] = {}
        self._trial: Trial | None = None
        self._density: float | None = None
        self._scale = 1.0

    def prepare(self, ranges: Sequence[tuple[int, int]]) -> None:
        super().prepare(ranges)
        self._last_range = ranges[-1]

    def begin_step(self, info: StepInfo) -> None:
        density = density_at(self._schedule, self._compression.density, info.step, info.epoch)
        self._density = None if info.dense else density
        self._scale = info.loss_scale
        if self._momentum:
            self._scale /= max(info.learning_rate, _LEAST_RATE)
        self._trial = None
        if self._schedule.auto and self._density is not None:
            self._trial = self._trials.setdefault(self._density, Trial())
            self._density = self._density if self._trial.kind == "sparse" else None
            self._begin_at = time.perf_counter()

    def start(self, start: int, stop: int) -> Work[Any]:
        if self._density is None:
            own = self._compressed.own_range(start, stop)
            if not self._feedback.is_clear(own.start):
                gradient = self._vector[own.start : own.stop]
                self._feedback.flush_into(own.start, gradient, self._scale, own.find_unused(gradient))
            dense = super().start(start, stop)
            return self._update_velocity_after(own, dense) if self._momentum else dense
        stages = self._compressed.stages(start, self._vector[start:stop], self._density, self._scale)
        self._watch.bytes["push"] += self._compressed.arriving_bytes(start, stop, self._density)
        return self._stages.start(stages, is_last=(start, stop) == self._last_range)

    def _update_velocity_after(self, own: FlatRange, dense: Work[Any]) -> Work[Any]:
        """Return ``dense`` with a wait that also passes its sum to momentum correction."""
        scale = self._scale

        def update(_: Any) -> None:
            total = self._vector[own.start : own.stop]
            self._feedback.update_velocity(
                own.start, total, scale, self._compressed.contributor_count, own.find_unused(total)
            )

        return dense.map(update)

    def end_step(self, applied: bool) -> None:
        self._compressed.settle(applied)
        if self._trial is None:
            return
        self._trial.record(time.perf_counter() - self._begin_at)
        if self._trial.is_due:
            report = json.dumps(self._trial.measurements()).encode()
            self._trial.choose([json.loads(each) for each in self._gang.all_gather(report, self._timeout)])

    def details(self) -> dict[str, Any]:
        """Return ``compression``, one entry for each density that schedule auto tried.

        ``density``; ``steps``: the kind of step chosen last (None: not yet); ``seconds``: seconds of a step, by kind, in the
        last trial.
        """
        trials = [
            {"density": density, "steps": trial.chosen, "seconds": trial.seconds}
            for density, trial in self._trials.items()
        ]
        return {"compression": trials} if trials else {}

    def state(self) -> dict[str, Any]:
        return self._compressed.state()

    def load_state(self, state: dict[str, Any]) -> None:
        device = self._vector.device  # tensors in checkpoints are on the CPU
        on_device = {name: {key: one.to(device) for key, one in tensors.items()} for name, tensors in state.items()}
        self._compressed.load_state(on_device)

    def close(self) -> None:
        self._compressed.close()
        self._stages.close(self._timeout)
