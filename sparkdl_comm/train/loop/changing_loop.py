"""The training loop of one rank under a strategy whose steps are common to all ranks in some epochs, and not in others; and
which loop is for which strategy.

An epoch without common steps counts as many steps as any other, as it has an update for each rank in place of each of them: so
the history, checkpoints and the summary count alike throughout. Within it, a rank counts those that it makes.
"""

from __future__ import annotations

from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.chosen_by_epoch import ChosenByEpoch
from sparkdl_comm.train.loop.asynchronous_loop import AsynchronousLoop
from sparkdl_comm.train.loop.training_loop import Tell, TrainingLoop


class ChangingLoop(AsynchronousLoop):
    """Trains one rank; see the module. ``after_step`` is called after each common step, and at the end of other epochs."""

    @property
    def version(self) -> int:
        return self.progress.step

    def _epoch(self, tell: Tell) -> None:
        at, chosen = self.progress, self.strategy
        assert isinstance(chosen, ChosenByEpoch)
        if not at.batch:  # no epoch that a checkpoint has cut
            seconds = at.history[-1]["seconds"] / self._sampler.steps if at.history else None
            chosen.begin_epoch(at.step + 1, seconds)
        if chosen.runs_apart:
            self._shares, self._begun = self._apart, at.step
            self._pass = max(self._pass, at.epoch)  # in another order than in any epoch before
            super()._epoch(tell)
        else:
            self._shares = self._common
            TrainingLoop._epoch(self, tell)

    def _end_of_epoch(self, total: float, rows: int, begin: float) -> None:
        self.progress.step = self._begun + self._sampler.steps
        super()._end_of_epoch(total, rows, begin)


def loop_for(strategy: Strategy) -> type[TrainingLoop]:
    """The loop that is for the strategy."""
    if isinstance(strategy, ChosenByEpoch):
        return ChangingLoop
    return AsynchronousLoop if isinstance(strategy, Asynchronous) else TrainingLoop
