"""The training loop of one rank under a strategy without common steps: epochs are counted in updates of the model.

1. An epoch has as many updates as the ranks together need to use each row once. A rank whose rows are used up begins with
   them anew, in another order; a fast one does so sooner. Updates that were dropped do not count: they are made up for.
2. It is over for a rank that has got a model with so many updates. It waits until its own last one is in the model, or was
   dropped.
3. When all ranks have come so far, nothing is under way. They all get the model, which is one version now. The epoch's loss
   is the mean over all rows that were computed in it, also for updates that were dropped.
4. Validation, schedulers, early stopping and callbacks as in any epoch.
5. A checkpoint, if one is due: after every so many updates, or seconds, the next end of an epoch is its moment.

If ranks do not run free (``bsp``, ``ssp``), a rank's epoch is a pass over its rows.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from sparkdl_comm.collectives.group import AUTO
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import BatchSampler, permutation
from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimization import Optimization
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.candidates import FABRIC
from sparkdl_comm.train.loop.class_mean import Shares
from sparkdl_comm.train.loop.progress import Progress
from sparkdl_comm.train.loop.training_loop import Tell, TrainingLoop
from sparkdl_comm.train.spec import TrainSpec


def check(conf: CommConf, optimization: Optimization) -> None:
    """What needs steps that are common to all ranks.

    :raises ConfError: it is asked for.
    """
    strategy = _named(conf)
    if conf.data_shuffle == "global":
        raise ConfError(
            f"{PREFIX}data.shuffle=global deals rows to common steps, which strategy {strategy} has not: set local"
        )
    if optimization.precision == "fp16":
        raise ConfError(
            f"precision='fp16' scales the loss of common steps, which strategy {strategy} has not: set fp32 or bf16"
        )
    if optimization.scheduler_interval == "step":
        raise ConfError(f"lrSchedulerInterval='step': strategy {strategy} has no common steps; set 'epoch'")


def _named(conf: CommConf) -> str:
    """The strategy that has no common steps, for messages."""
    return f"{FABRIC}, which {PREFIX}auto.candidates names," if conf.strategy == AUTO else conf.strategy


class AsynchronousLoop(TrainingLoop):
    """Trains one rank; see the module. ``after_step`` is called at the end of each epoch."""

    synchronous = False

    def __init__(
        self,
        spec: TrainSpec,
        gang: Gang,
        rows: RowCache,
        sampler: BatchSampler,
        model: FlatModel,
        strategy: Asynchronous,
        progress: Progress,
        validation: RowCache | None = None,
        together: bool = False,
    ) -> None:
        """As that of :class:`TrainingLoop`.

        :raises ConfError: something needs common steps.
        :raises InputError: this rank has no rows.
        """
        check(spec.conf, spec.optimization)
        super().__init__(spec, gang, rows, sampler, model, strategy, progress, validation, together)
        if self._schedule.is_per_step:
            raise ConfError(f"lr_scheduler steps after each step; strategy {_named(spec.conf)} has no common ones")
        if not rows.rows:
            raise InputError(f"rank {gang.rank} got no rows: set num_workers to fewer, or give more rows")
        self._gang, self._asynchronous = gang, strategy
        # The ranks' steps are not the same, so neither are there rows of all ranks in a step.
        self._common = self._shares
        self._apart = self._shares = Shares(None, rows, self._dealing, sampler, gang, spec.conf.timeout)
        self._pass = 0
        self._updates = sampler.steps * gang.world

    @property
    def version(self) -> int:
        return self._asynchronous.version

    def state(self) -> dict[str, dict[str, Any]]:
        state = super().state()
        state["own"]["pass"] = self._pass
        return state

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        super().load_state(state)
        self._pass = state["own"].get("pass", 0)

    def _epoch(self, tell: Tell) -> None:
        at, strategy = self.progress, self._asynchronous
        self._observer.callbacks.call("on_epoch_begin", epoch=at.epoch + 1)
        begin, first = time.perf_counter(), strategy.version
        total, rows, steps = 0.0, 0, 0
        while self._goes_on(first, steps):
            if steps % self._sampler.steps == 0:
                self._begin_pass()
            count = len(self._steps.of(at.batch))
            if count or not strategy.free_running:  # others may wait for an update, be it empty
                share = self._shares.of(self._steps.of(at.batch), at.batch)
                loss = self._step()[0] / share if share else 0.0
                total, rows = total + loss * count, rows + count
                at.step += 1
                self._tell(tell, loss, strategy.version - first, begin)
            at.batch, steps = at.batch + 1, steps + 1
        self._end_of_epoch(total, rows, begin)

    def _goes_on(self, first: int, steps: int) -> bool:
        """Gets the model, unless the epoch is over for this rank. ``first``: the version with which the epoch began;
        ``steps``: that this rank has made in it."""
        strategy = self._asynchronous
        if not strategy.free_running and steps >= self._sampler.steps:
            return False
        self.progress.phase = "pull"
        strategy.before_forward()
        return not strategy.free_running or strategy.version < first + self._updates

    def _begin_pass(self) -> None:
        order = permutation(self._rows.rows, self._spec.seed, self._pass, self._rank)
        self._steps.begin_epoch(torch.from_numpy(order))
        self._pass, self.progress.batch = self._pass + 1, 0

    def _tell(self, tell: Tell, loss: float, updates: int, begin: float) -> None:
        at = self.progress
        seconds = time.perf_counter() - begin
        tell(
            {
                "epoch": at.epoch,
                "epochs": self._spec.epochs,
                "step": min(updates, self._updates),
                "steps": self._updates,
                "loss": loss,
                "samples_per_second": updates * self._sampler.total / self._updates / seconds,
            }
        )
        self._observer.callbacks.call("on_step_end", step=at.step, loss=loss)

    def _end_of_epoch(self, total: float, rows: int, begin: float) -> None:
        at, strategy, timeout = self.progress, self._asynchronous, self._spec.conf.timeout
        at.phase = "push"
        strategy.settle()
        everybody = sum(gather_json(self._gang, rows, timeout))
        at.phase = "pull"
        strategy.before_forward()
        versions = gather_json(self._gang, strategy.version, timeout)
        if len(set(versions)) > 1:
            raise GangError(f"the ranks got versions {versions} of the model although no update was under way")
        row: dict[str, Any] = {
            "epoch": at.epoch + 1,
            "step": self.version,
            "loss": total / everybody if everybody else math.nan,
            "lr": self._schedule.rate(),
            "seconds": time.perf_counter() - begin,
        }
        at.phase = "end of epoch"
        at.stopped = self._observer.epoch_end(row, self._rows.rows)
        at.history.append(row)
        at.epoch, at.batch = at.epoch + 1, 0
        if self.after_step is not None:
            at.phase = "after step"
            self.after_step(self)
            gather_json(self._gang, None, timeout)  # until all have copied what they write, nobody makes an update
