"""The training loop of one rank under a strategy whose steps are common to all ranks in some epochs, and not in others; and
which loop is for which strategy.

An epoch without common steps counts as many steps as any other, as it has an update for each rank in place of each of them: so
the history, checkpoints and the summary count alike throughout. Within it, a rank counts those that it makes.
"""

from __future__ import annotations

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.chosen_by_epoch import ChosenByEpoch
from sparkdl_comm.train.loop.asynchronous_loop import AsynchronousLoop
from sparkdl_comm.train.loop.class_mean import Shares
from sparkdl_comm.train.loop.progress import Progress
from sparkdl_comm.train.loop.training_loop import Tell, TrainingLoop
from sparkdl_comm.train.spec import TrainSpec


class ChangingLoop(AsynchronousLoop):
    """Trains one rank; see the module. ``after_step`` is called after each common step, and at the end of other epochs."""

    def __init__(
        self,
        spec: TrainSpec,
        gang: Gang,
        rows: RowCache,
        sampler: BatchSampler,
        model: FlatModel,
        strategy: ChosenByEpoch,
        progress: Progress,
        validation: RowCache | None = None,
        together: bool = False,
    ) -> None:
        """Arguments and errors are those of :class:`AsynchronousLoop`."""
        super().__init__(spec, gang, rows, sampler, model, strategy, progress, validation, together)
        self._chosen = strategy
        self._apart, self._common = (
            self._shares,
            Shares(self._mean, rows, self._dealing, sampler, gang, spec.conf.timeout),
        )

    @property
    def version(self) -> int:
        return self.progress.step

    def _epoch(self, tell: Tell) -> None:
        at = self.progress
        if not at.batch:  # no epoch that a checkpoint has cut
            seconds = at.history[-1]["seconds"] / self._sampler.steps if at.history else None
            self._chosen.begin_epoch(at.step + 1, seconds)
        if self._chosen.runs_apart:
            self._shares, self._begun = self._apart, at.step
            self._pass = max(self._pass, at.epoch)  # in another order than in any epoch before
            super()._epoch(tell)
        else:
            self._shares = self._common
            TrainingLoop._epoch(self, tell)

    def _end_of_epoch(self, total: float, rows: int, begin: float) -> None:
        self.progress.step = self._begun + self._sampler.steps
        super()._end_of_epoch(total, rows, begin)


def loop_for(
    spec: TrainSpec,
    gang: Gang,
    rows: RowCache,
    sampler: BatchSampler,
    model: FlatModel,
    strategy: Strategy,
    progress: Progress,
    validation: RowCache | None = None,
    together: bool = False,
) -> TrainingLoop:
    """The loop that is for the strategy; arguments and errors are those of :class:`TrainingLoop`."""
    if isinstance(strategy, ChosenByEpoch):
        return ChangingLoop(spec, gang, rows, sampler, model, strategy, progress, validation, together)
    if isinstance(strategy, Asynchronous):
        return AsynchronousLoop(spec, gang, rows, sampler, model, strategy, progress, validation)
    return TrainingLoop(spec, gang, rows, sampler, model, strategy, progress, validation, together)
