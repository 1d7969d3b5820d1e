"""The training loop of one rank. What travels between ranks, and how, is the strategy's business."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict
from typing import Any

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.errors import ConfError, ModelError, NonFiniteLossError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.schedule import Schedule
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import UntrainedState
from sparkdl_comm.strategies.base import StepInfo, Strategy
from sparkdl_comm.strategies.gradients import GradientRule
from sparkdl_comm.train.loop import rng
from sparkdl_comm.train.loop.augmentation import Augmentation
from sparkdl_comm.train.loop.class_mean import ClassMean, Shares
from sparkdl_comm.train.loop.dealing import Dealing
from sparkdl_comm.train.loop.objective import Objective, on_device
from sparkdl_comm.train.loop.observer import Observer
from sparkdl_comm.train.loop.output_shape import shape_in_eval, shape_of
from sparkdl_comm.train.loop.progress import Progress
from sparkdl_comm.train.loop.step_rows import StepRows
from sparkdl_comm.train.spec import TrainSpec

Tell = Callable[[dict[str, Any]], None]


class TrainingLoop:
    """Runs the steps of all epochs: this rank's slice of each batch goes through forward, backward and the strategy.

    A step's loss is the mean over the rows that all ranks have in it. So a rank scales its own mean by its share of
    these rows (see :mod:`sparkdl_comm.train.loop.class_mean`), unless the strategy wants it as it is, and a rank
    without a row in the step takes part with gradient zero. With ``accumulation_steps`` k the slice is computed in k
    parts, whose gradients add up to those of the whole.

    ``after_step``, if set, is called after every optimizer step that all ranks have in common, when :meth:`state` is what the
    next step begins with.
    """

    #: Whether it is for strategies whose steps are common to all ranks.
    synchronous = True

    def __init__(
        self,
        spec: TrainSpec,
        gang: Gang,
        rows: RowCache,
        sampler: BatchSampler,
        model: FlatModel,
        strategy: Strategy,
        progress: Progress,
        validation: RowCache | None = None,
        together: bool = False,
    ) -> None:
        """``strategy`` has joined; ``sampler`` cuts epochs into optimizer steps. ``validation``: this rank's rows; None if no
        rank has any. ``together``: the model has collectives, so ranks without rows run it too.

        :raises ConfError: the strategy has no steps that are common to all ranks, which this loop needs.
        """
        if strategy.synchronous != self.synchronous:
            raise ConfError(
                f"strategy {spec.conf.strategy} has no common steps, which fit needs: set another spark.sparkdl.comm.strategy"
            )
        self.model, self.strategy, self.progress = model, strategy, progress
        self.after_step: Callable[[TrainingLoop], None] | None = None
        self._spec, self._rank, self._rows, self._sampler = spec, gang.rank, rows, sampler
        self._device = next(model.module.parameters()).device
        self._validation, self._together = validation, together
        how, timeout = spec.optimization, spec.conf.timeout
        parts = [rows] if validation is None else [rows, validation]
        # Every rank has its own, also where the process was forked or is used again.
        loss = on_device(copy.deepcopy(spec.loss), self._device)
        self._untrained = UntrainedState(model, loss)
        mean = ClassMean.of(loss, spec.rows)
        if mean is not None and not mean.needed(parts, gang, timeout):
            mean = None
        self._mean = mean
        self._dealing = Dealing(spec, gang, rows, sampler.counts)
        self._shares = Shares(mean, rows, self._dealing, sampler, gang, timeout)
        self._steps = StepRows(self._dealing.source, sampler, gang.rank, how.accumulation_steps, self._device, together)
        self._augment = spec.augment and Augmentation(spec.augment, spec.seed, gang.rank, self._device)
        self._objective = Objective(mean or loss, how.precision, self._device, spec.rows.inputs, self._look_at)
        self._rule = GradientRule(how, gang, strategy, timeout)
        self._schedule = Schedule(how, strategy.optimizer, sampler.steps, spec.epochs)
        self._not_finite_from_the_start = model.not_finite(0, model.values)
        self._observer = Observer(
            spec, gang, model, strategy, self._schedule, self._objective, validation, self._untrained
        )

    def run(self, tell: Tell) -> float:
        """Trains all epochs that are left. ``tell`` gets a progress dict after each step. Returns seconds.

        :raises NonFiniteLossError: this rank's loss is NaN or infinite, but for fp16, which skips such a step; or a trained
            parameter is.
        :raises ModelError: model or loss cannot be trained.
        """
        begin = time.perf_counter()
        at = self.progress
        self.model.module.train()
        self._observer.callbacks.call("on_train_begin", epoch=at.epoch + 1, step=at.step)
        with closing(self._steps), closing(self._dealing):
            while at.epoch < self._spec.epochs and not at.stopped:
                self._epoch(tell)
            at.phase = "finish"
            self.strategy.finish()  # then all ranks have computed their last step, and need no rows of this one any more
        self._observer.train_end()
        self.check_finite([(0, self.model.values)])
        return time.perf_counter() - begin

    def check_finite(self, stretches: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Checks that training has made no parameter NaN or infinite.

        :param stretches: (first element, values) of the flat vector.
        :raises NonFiniteLossError: it has.
        """
        for start, values in stretches:
            spoilt = sorted(self.model.not_finite(start, values) - self._not_finite_from_the_start)
            if spoilt:
                raise NonFiniteLossError(
                    f"after step {self.progress.step} parameter {spoilt[0]} has values that are NaN or infinite, as have"
                    f" {len(spoilt) - 1} others: lower the learning rate, or clip gradients (maxGradNorm)",
                    rank=self._rank,
                    step=self.progress.step,
                )

    @property
    def version(self) -> int:
        """How many updates the model has had, the same on all ranks."""
        return self.progress.step

    def state(self) -> dict[str, dict[str, Any]]:
        """Everything, but for parameters and optimizer, that decides how training goes on: numbers, strings, lists and dicts
        of them, and tensors, which are not copied. ``own`` is this rank's, ``common`` the same on all."""
        progress = asdict(self.progress)
        del progress["phase"]
        own = {
            "progress": progress,
            "rng": rng.state(self._device),
            "frozen": self.model.frozen(),
            "untrained": self._untrained.tensors(),
            "extra_state": self._untrained.extra(),
            "strategy": self.strategy.state(),
            "rule": self._rule.state(),
            "schedule": self._schedule.state(),
            "callbacks": self._observer.callbacks.saved(),
        }
        return {"own": own, "common": {"stopping": self._observer.stopping.state()}}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from ``state`` of the same rank in a gang of the same size, instead of from the beginning. Before ``run``, and
        after the optimizer has its state."""
        own = state["own"]
        for name, value in own["progress"].items():
            setattr(self.progress, name, value)
        self.model.freeze(own["frozen"])
        self._untrained.load({**state["common"].get("untrained", {}), **own["untrained"]})
        self._untrained.load_extra(own["extra_state"])
        self.strategy.load_state(own.get("strategy", {}))
        self._rule.load_state(own["rule"])
        self._schedule.load_state(own["schedule"])
        self._observer.callbacks.load(own["callbacks"])
        self._observer.stopping.load_state(state["common"]["stopping"])
        rng.load_state(own["rng"], self._device)

    def _epoch(self, tell: Tell) -> None:
        """The steps of the current epoch that are left, and its end."""
        at, sampler = self.progress, self._sampler
        order = self._dealing.order(at.epoch)
        self._shares.begin_epoch(order)
        self._steps.begin_epoch(order)
        self._observer.callbacks.call("on_epoch_begin", epoch=at.epoch + 1)
        begin, rows = time.perf_counter(), 0
        while at.batch < sampler.steps:
            share = self._shares.of(self._steps.of(at.batch), at.batch)
            loss, applied = self._step()
            rows += sampler.rows(at.batch)
            if applied:
                at.epoch_loss += loss
            else:
                at.skipped += 1
            at.batch += 1
            at.step += 1
            tell(
                {
                    "epoch": at.epoch,
                    "epochs": self._spec.epochs,
                    "step": at.batch,
                    "steps": sampler.steps,
                    "loss": loss / share if share else None,
                    "samples_per_second": rows / (time.perf_counter() - begin),
                }
            )
            self._observer.step_end(at.step, loss / share if share else None)
            if self.after_step is not None:
                at.phase = "after step"
                self.after_step(self)
        self._end_epoch(time.perf_counter() - begin)

    def _end_epoch(self, seconds: float) -> None:
        at = self.progress
        counted = self._sampler.steps - at.skipped
        row: dict[str, Any] = {
            "epoch": at.epoch + 1,
            "step": at.step,
            "loss": at.epoch_loss / counted if counted else math.nan,
            "lr": self._schedule.rate(),
            "seconds": seconds,
        }
        if self._rule.skips:
            row["skipped_steps"] = at.skipped
        at.phase = "end of epoch"
        at.stopped = self._observer.epoch_end(row, self._rows.rows)
        at.history.append(row)
        at.epoch, at.batch, at.epoch_loss = at.epoch + 1, 0, 0.0
        at.skipped = 0

    def _step(self) -> tuple[float, bool]:
        """One optimizer step; returns this rank's part of its mean loss, and whether the step was taken."""
        at, strategy = self.progress, self.strategy
        if strategy.trace is not None:
            strategy.trace.iteration(at.step + 1)
        at.phase = "pull"
        strategy.step_info = StepInfo(at.step + 1, at.epoch + 1, self._rule.scale, self._schedule.rate())
        strategy.begin_step()
        self.model.clear_gradients()
        value, weight = 0.0, 1.0
        if not strategy.global_mean:
            weight = 1 / (self._shares.of(self._steps.of(at.batch), at.batch) or math.inf)
        parts = self._steps.parts(at.batch)
        if not parts:
            strategy.before_forward()  # the last step's gradients may still be read, until this step's parameters are here
        for number, part in enumerate(parts):
            value += self._compute(number, self._shares.of(part, at.batch), weight, last=number == len(parts) - 1)
        self.model.complete_gradients()
        at.phase = "push"
        strategy.after_backward()
        at.phase = "update"
        apply = self._rule.prepare(at.step + 1)
        strategy.update(apply)
        self._schedule.after_step()
        return value, apply

    def _compute(self, number: int, share: float, weight: float, last: bool) -> float:
        """Forward and backward of part ``number``, the ``last`` one of the step or not; returns what its rows add to the
        step's mean loss: their own by ``share``. ``weight``: of that in the gradient."""
        at, watch, module = self.progress, self.strategy.watch, self.model.module
        at.phase = "forward"
        with watch.phase("forward"):
            batch = self._steps.take(at.batch, number)
            if self._augment is not None:
                batch = self._augment(batch, at.epoch, at.batch, number)
            versions = self.model.versions()
            with self.strategy.forward():
                _, loss = self._objective(module, batch)
            if self.model.versions() != versions:
                # Only the rank that owns them would keep the change, and others may be reading them right now.
                raise ModelError(
                    "forward changes trainable parameters in place, or their .data (Embedding with max_norm?): only the"
                    " optimizer may"
                )
            self.model.check_trainable()
            value = loss.item()
        if not math.isfinite(value) and not self._rule.skips:
            raise NonFiniteLossError(
                f"the loss became {value} on rank {self._rank} at step {at.number}:"
                " lower the learning rate, or look for NaN in the features",
                rank=self._rank,
                step=at.number,
            )
        at.phase = "backward"
        with watch.phase("backward"), self.strategy.backward(last):
            (loss * (share * weight * self._rule.scale)).backward()
        return value * share

    def see_output(self) -> None:
        """Learn the shape of the model's output in eval mode, after training: it may return other things than in training.

        A rank without rows learns nothing, nor does one whose model has collectives, which all ranks would have to run.
        """
        if not self._rows.rows or self._together:
            return
        module = self.model.module

        def run(rows: int) -> Any:
            index = torch.arange(rows) % self._rows.rows
            with torch.no_grad(), self._objective.autocast():
                return self._objective.output(module, self._rows.take(index, self._device))

        shape = shape_in_eval(run, module)
        if shape is not None:
            self.progress.output_shape = shape

    def _look_at(self, output: Any, rows: int) -> None:
        """``output``: of the first batch."""
        self.progress.output_shape = shape_of(output, rows)
        if self._spec.labels is not None:
            parts = [self._rows] if self._validation is None else [self._rows, self._validation]
            self._spec.labels.check(output, parts, self._rank)
