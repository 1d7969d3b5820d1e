"""Training loop for strategies that have common steps in some epochs and none in others, and the choice of a strategy's
loop.

An epoch without common steps counts as many steps as any other: it has one update per rank for each common step. So the
history, checkpoints and the summary count alike throughout. Within the epoch, a rank counts its own steps.
"""

from __future__ import annotations

from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.chosen_by_epoch import ChosenByEpoch
from sparkdl_comm.train.loop.asynchronous_loop import AsynchronousLoop
from sparkdl_comm.train.loop.training_loop import Tell, TrainingLoop


class ChangingLoop(AsynchronousLoop):
    """Training loop of one rank; see the module. It calls ``after_step`` after each common step, and at the end of
    other epochs.
    """

    @property
    def version(self) -> int:
        return self.progress.step

    def _epoch(self, tell: Tell) -> None:
        at, chosen = self.progress, self.strategy
        assert isinstance(chosen, ChosenByEpoch)
        if not at.batch:  # not in the middle of an epoch that is resumed from a checkpoint
            seconds = at.history[-1]["seconds"] / self._sampler.steps if at.history else None
            chosen.begin_epoch(at.step + 1, seconds)
        if chosen.runs_apart:
            self._shares, self._begun = self._apart, at.step
            self._pass = max(self._pass, at.epoch)  # a row order that no earlier epoch used
            super()._epoch(tell)
        else:
            self._shares = self._common
            TrainingLoop._epoch(self, tell)

    def _end_of_epoch(self, total: float, rows: int, begin: float) -> None:
        self.progress.step = self._begun + self._sampler.steps
        super()._end_of_epoch(total, rows, begin)


def loop_for(strategy: Strategy) -> type[TrainingLoop]:
    """Return the class of training loop for the strategy."""
    if isinstance(strategy, ChosenByEpoch):
        return ChangingLoop
    return AsynchronousLoop if isinstance(strategy, Asynchronous) else TrainingLoop
