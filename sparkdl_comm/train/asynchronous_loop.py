"""Training loop of one rank under a strategy without common steps. Epochs are counted in updates of the model.

1. An epoch has as many updates as the ranks together need to use each row once. A rank that has used all its rows
   starts over with them in another order; a fast rank does so sooner. Dropped updates do not count and are made up for.
2. The epoch ends for a rank when it has a model with that many updates. The rank then waits until its own last update
   is applied or dropped.
3. When all ranks have reached this point, no update is in transit. All ranks fetch the model, which has one version
   now. The epoch's loss is the mean over all rows computed in it, including rows of dropped updates.
4. Validation, schedulers, early stopping and callbacks run as in any epoch.
5. A due checkpoint is written at the end of the epoch.

If ranks do not run free (``bsp``, ``ssp``), a rank's epoch is one pass over its rows.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.data.partitions import permutation
from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.optim.optimizer import Optimization
from sparkdl_comm.strategies.base import AsynchronousStrategy
from sparkdl_comm.train.training_loop import ProgressReporter, TrainingLoop


def check_settings(conf: CommConf, optimization: Optimization) -> None:
    """Check that the settings do not need steps that are common to all ranks.

    :raises ConfError: a setting needs common steps.
    """
    strategy = conf.strategy
    if conf.data.shuffle == "global":
        raise ConfError(
            f"{PREFIX}data.shuffle=global needs steps common to all ranks. Strategy {strategy} has no common steps. Set local."
        )
    if optimization.precision == "fp16":
        raise ConfError(
            f"precision='fp16' needs steps common to all ranks. Strategy {strategy} has no common steps. Set fp32 or bf16."
        )
    if optimization.scheduler_interval == "step":
        raise ConfError(f"lrSchedulerInterval='step': strategy {strategy} has no common steps. Set 'epoch'.")


class AsynchronousLoop(TrainingLoop):
    """Training loop of one rank without common steps; see the module. It calls ``after_step`` at the end of each epoch."""

    is_synchronous = False
    strategy: AsynchronousStrategy
    _pass_number = 0

    def _prepare(self) -> None:
        """Check what only this loop needs.

        :raises ConfError: the learning-rate scheduler needs common steps.
        :raises InputError: this rank has no rows.
        """
        if self._schedule.is_per_step:
            raise ConfError(
                f"lr_scheduler steps after each step, but strategy {self._spec.conf.strategy} has no common steps"
            )
        if not self._rows.rows:
            raise InputError(f"rank {self._rank} got no rows. Reduce num_workers, or add rows.")
        self._updates_per_epoch = self._sampler.steps * self._gang.world

    @property
    def version(self) -> int:
        return self.strategy.version

    def state(self) -> dict[str, dict[str, Any]]:
        state = super().state()
        state["own"]["pass"] = self._pass_number
        return state

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        super().load_state(state)
        self._pass_number = state["own"].get("pass", 0)

    def _epoch(self, report: ProgressReporter) -> None:
        progress, strategy = self.progress, self.strategy
        self._observer.callbacks.call("on_epoch_begin", epoch=progress.epoch + 1)
        begin, first = time.perf_counter(), strategy.version
        total, rows, steps = 0.0, 0, 0
        while self._continue_epoch(first, steps):
            if steps % self._sampler.steps == 0:
                self._begin_pass()
            count = len(self._steps.rows_of(progress.batch))
            if count or not strategy.free_running:  # other ranks may wait for this rank's update, even an empty one
                share = self._shares.share_of(self._steps.rows_of(progress.batch), progress.batch)
                value, _ = self._step()  # also without rows
                loss = value / share if share else 0.0
                total, rows = total + loss * count, rows + count
                progress.step += 1
                updates, seconds = strategy.version - first, time.perf_counter() - begin
                rate = updates * self._sampler.total / self._updates_per_epoch / seconds
                position = min(updates, self._updates_per_epoch)
                report(self._describe_progress(position, self._updates_per_epoch, loss, rate))
                self._observer.callbacks.call("on_step_end", step=progress.step, loss=loss)
            progress.batch, steps = progress.batch + 1, steps + 1
        self._finish_epoch(total, rows, begin)

    def _continue_epoch(self, first: int, steps: int) -> bool:
        """Return whether the epoch continues for this rank. If so, fetch the model.

        :param first: model version at the begin of the epoch.
        :param steps: steps that this rank has taken in the epoch.
        """
        strategy = self.strategy
        if not strategy.free_running and steps >= self._sampler.steps:
            return False
        self.progress.phase = "pull"
        strategy.before_forward()
        return not strategy.free_running or strategy.version < first + self._updates_per_epoch

    def _begin_pass(self) -> None:
        order = permutation(self._rows.rows, self._spec.seed, self._pass_number, self._rank)
        self._steps.begin_epoch(torch.from_numpy(order))
        self._pass_number, self.progress.batch = self._pass_number + 1, 0

    def _finish_epoch(self, total: float, rows: int, begin: float) -> None:
        progress, strategy, timeout = self.progress, self.strategy, self._spec.conf.timeout
        progress.phase = "push"
        strategy.settle()
        rows_of_all = sum(gather_json(self._gang, rows, timeout))
        progress.phase = "pull"
        strategy.before_forward()
        versions = gather_json(self._gang, strategy.version, timeout)
        if len(set(versions)) > 1:
            raise GangError(f"the ranks got versions {versions} of the model, although no update was in transit")
        self._end_epoch(total / rows_of_all if rows_of_all else math.nan, begin)
        if self.after_step is not None:
            progress.phase = "after step"
            self.after_step(self)
            gather_json(self._gang, None, timeout)  # no rank sends an update before all have copied their state
