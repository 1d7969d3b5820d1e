"""Training loop of one rank. The strategy decides what ranks exchange, and how."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.errors import ConfError, ModelError, NonFiniteLossError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Schedule
from sparkdl_comm.space import module_state
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import UntrainedState, take_over_state
from sparkdl_comm.strategies.base import StepInfo, Strategy
from sparkdl_comm.strategies.gradients import GradientRule
from sparkdl_comm.train import rng
from sparkdl_comm.train.callbacks import Progress
from sparkdl_comm.train.class_mean import ClassMean, Shares
from sparkdl_comm.train.diagnosis import shape_in_eval, shape_of
from sparkdl_comm.train.objective import Objective, move_to_device
from sparkdl_comm.train.observer import Observer
from sparkdl_comm.train.row_assignment import RowAssignment, StepRows
from sparkdl_comm.train.spec import TrainSpec

if TYPE_CHECKING:
    from sparkdl_comm.train.rng import Augmentation

ProgressReporter = Callable[[dict[str, Any]], None]


class TrainingLoop:
    """Training loop that runs the steps of all epochs. This rank's slice of each batch goes through forward, backward
    and the strategy.

    A step's loss is the mean over all ranks' rows of the step. So a rank scales its own mean by its share of these rows
    (see :mod:`sparkdl_comm.train.class_mean`), unless the strategy weights the ranks itself. A rank without rows
    in the step takes part with gradient zero. With ``accumulation_steps`` k the slice is computed in k parts, whose
    gradients add up to those of the whole slice.

    ``after_step``, if set, is called after every common optimizer step, when :meth:`state` is the state that the next
    step begins with.
    """

    #: True for strategies whose steps are common to all ranks.
    is_synchronous = True

    _augment: Augmentation | None = None
    _is_resumed = False

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
        has_collectives: bool = False,
    ) -> None:
        """Create the loop. ``strategy`` has joined.

        :param sampler: divides epochs into optimizer steps.
        :param validation: this rank's validation rows. None: no rank has any.
        :param has_collectives: the model has collectives, so ranks without rows run it too.
        :raises ConfError: the strategy has no steps that are common to all ranks, which this loop needs.
        """
        if strategy.is_synchronous != self.is_synchronous:
            raise ConfError(
                f"strategy {spec.conf.strategy} has no common steps, which fit needs. Set another spark.sparkdl.comm.strategy."
            )
        self.model, self.strategy, self.progress = model, strategy, progress
        self.after_step: Callable[[TrainingLoop], None] | None = None
        self._spec, self._gang, self._rank, self._rows, self._sampler = spec, gang, gang.rank, rows, sampler
        self._device = model.device
        self._validation, self._has_collectives = validation, has_collectives
        optimization, timeout = spec.optimization, spec.conf.timeout
        parts = [rows] if validation is None else [rows, validation]
        # A copy for each rank, even if the process was forked or is reused.
        loss = move_to_device(module_state.deep_copy(spec.loss), self._device)
        self._untrained = UntrainedState(model, loss)
        mean = ClassMean.of(loss, spec.rows)
        if mean is not None and not mean.is_needed(parts, gang, timeout):
            mean = None
        self._row_assignment = RowAssignment(spec, gang, rows, sampler.counts)
        # Without common steps, a rank's share of a step cannot be relative to the other ranks' rows.
        shared_mean = mean if self.is_synchronous else None
        self._shares = Shares(shared_mean, rows, self._row_assignment, sampler, gang, timeout)
        self._steps = StepRows(
            self._row_assignment.source,
            sampler,
            gang.rank,
            optimization.accumulation_steps,
            self._device,
            has_collectives,
        )
        if spec.augment is not None:
            from sparkdl_comm.train.rng import Augmentation

            self._augment = Augmentation(spec.augment, spec.seed, gang.rank, self._device)
        self._objective = Objective(
            mean or loss, optimization.precision, self._device, spec.rows.inputs, self._on_first_output
        )
        self._rule = GradientRule(optimization, gang, strategy, timeout)
        self._schedule = Schedule(optimization, strategy.optimizer, sampler.steps, spec.epochs)
        self._initially_not_finite = model.not_finite(0, model.values)
        self._observer = Observer(
            spec, gang, model, strategy, self._schedule, self._objective, validation, self._untrained
        )
        self._prepare()

    def _prepare(self) -> None:
        """Check and make what a subclass needs. The constructor ends with this call."""

    def run(self, report: ProgressReporter) -> float:
        """Train the remaining epochs. Return the seconds that it took.

        :param report: gets a progress dict after each step.
        :raises NonFiniteLossError: this rank's loss is NaN or infinite (fp16 skips such a step instead); or a trained
            parameter is.
        :raises ModelError: model or loss cannot be trained.
        """
        begin = time.perf_counter()
        progress = self.progress
        self.model.module.train()
        self._call_begin("on_train_begin", self._is_resumed, epoch=progress.epoch + 1, step=progress.step)
        with closing(self._steps), closing(self._row_assignment):
            while progress.epoch < self._spec.epochs and not progress.stopped:
                self._epoch(report)
            progress.phase = "finish"
            self.strategy.finish()  # all ranks have computed their last step now, and need no more rows of this rank
        self._observer.train_end()
        self.check_finite([(0, self.model.values)])
        return time.perf_counter() - begin

    def check_finite(self, stretches: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Check that training has made no parameter NaN or infinite.

        :param stretches: (first element, values) of ranges of the flat vector.
        :raises NonFiniteLossError: a parameter has become NaN or infinite.
        """
        for start, values in stretches:
            bad_names = sorted(self.model.not_finite(start, values) - self._initially_not_finite)
            if bad_names:
                raise NonFiniteLossError(
                    f"after step {self.progress.step} parameter {bad_names[0]} has values that are NaN or infinite, as have"
                    f" {len(bad_names) - 1} others. Lower the learning rate, or clip gradients (maxGradNorm).",
                    rank=self._rank,
                    step=self.progress.step,
                )

    @property
    def version(self) -> int:
        """Number of updates that the model has had, the same on all ranks."""
        return self.progress.step

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state that decides how training continues, except for parameters and optimizer.

        ``own`` is this rank's state, ``common`` is equal on all ranks. They hold numbers, strings, tensors, and lists
        and dicts of these. Tensors are not copied.
        """
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
        """Continue from ``state`` of the same rank in a gang of the same size. Call it before ``run``, after the
        optimizer has its state.
        """
        own, self._is_resumed = state["own"], True
        for name, value in own["progress"].items():
            setattr(self.progress, name, value)
        self.model.freeze(own["frozen"])
        shared, missing = state["common"].get("untrained", {}), own.get("missing", ())
        self._untrained.load({**{name: shared[name] for name in shared if name not in missing}, **own["untrained"]})
        self._untrained.load_extra(own["extra_state"])
        self.strategy.load_state(own.get("strategy", {}))
        self._rule.load_state(own["rule"])
        self._schedule.load_state(own["schedule"])
        self._observer.callbacks.load(own["callbacks"])
        self._observer.stopping.load_state(state["common"]["stopping"])
        rng.load_state(own["rng"], self._device)

    def _call_begin(self, hook: str, has_run: bool, **changes: Any) -> None:
        """Call a hook that runs again after a restart. ``has_run``: it ran before the checkpoint from which training
        continues. So its effects are part of the restored state, with what later hooks have made of them.
        """
        callbacks = self._observer.callbacks
        again = has_run and callbacks.find_overriding(hook)
        with self._keep_restored_state() if again else contextlib.nullcontext():
            callbacks.call(hook, **changes)

    @contextlib.contextmanager
    def _keep_restored_state(self) -> Iterator[None]:
        """Return a context at whose end the model, the loss and the random generators have their state again."""
        values = self.model.values.clone() if self.strategy.can_take_changes else None
        frozen, generators = self.model.frozen(), rng.state(self._device)
        tensors = {name: tensor.detach().clone() for name, tensor in self._untrained.tensors().items()}
        extra = copy.deepcopy(self._untrained.extra())
        yield
        if values is not None:
            self.model.values.copy_(values)
        self.model.freeze(frozen)
        self._untrained.load(tensors)
        self._untrained.load_extra(extra)
        rng.load_state(generators, self._device)

    def _epoch(self, report: ProgressReporter) -> None:
        """Run the remaining steps of the current epoch, and its end."""
        progress, sampler = self.progress, self._sampler
        order = self._row_assignment.order(progress.epoch)
        self._shares.begin_epoch(order)
        self._steps.begin_epoch(order)
        self._call_begin("on_epoch_begin", progress.batch > 0, epoch=progress.epoch + 1)
        begin, rows = time.perf_counter(), 0
        sources = itertools.islice(self._steps.sources(), progress.batch, None)
        while progress.batch < sampler.steps:
            self._take_over_state(next(sources))
            share = self._shares.share_of(self._steps.rows_of(progress.batch), progress.batch)
            loss, applied = self._step()
            rows += sampler.rows(progress.batch)
            if applied:
                progress.epoch_loss += loss
            else:
                progress.skipped += 1
            progress.batch += 1
            progress.step += 1
            shown_loss, rate = loss / share if share else None, rows / (time.perf_counter() - begin)
            report(self._describe_progress(progress.batch, sampler.steps, shown_loss, rate))
            self._observer.step_end(progress.step, shown_loss)
            if self.after_step is not None:
                progress.phase = "after step"
                self.after_step(self)
        self._take_over_state(next(sources))
        applied_steps = sampler.steps - progress.skipped
        self._end_epoch(progress.epoch_loss / applied_steps if applied_steps else math.nan, begin)

    def _take_over_state(self, sources: list[int]) -> None:
        """Give all ranks the untrained state of ``sources``, if there are any."""
        if sources:
            self.progress.phase = "pull" if self.progress.batch < self._sampler.steps else "end of epoch"
            take_over_state(self._untrained, sources, self._gang, self._spec.conf.timeout)

    def _describe_progress(
        self, step: int, steps: int, loss: float | None, samples_per_second: float
    ) -> dict[str, Any]:
        """Return the progress after a step. ``step``, ``steps``: position in the epoch, and its length."""
        return {
            "epoch": self.progress.epoch,
            "epochs": self._spec.epochs,
            "step": step,
            "steps": steps,
            "loss": loss,
            "samples_per_second": samples_per_second,
        }

    def _end_epoch(self, loss: float, begin: float) -> None:
        """Run the end of an epoch. ``loss``: this rank's part of the mean. ``begin``: when the epoch began, in seconds."""
        progress = self.progress
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "step": self.version,
            "loss": loss,
            "lr": self._schedule.rate(),
            "seconds": time.perf_counter() - begin,
        }
        if self._rule.can_skip_steps:
            row["skipped_steps"] = progress.skipped
        progress.phase = "end of epoch"
        progress.stopped = self._observer.epoch_end(row, self._rows.rows)
        progress.history.append(row)
        progress.epoch, progress.batch, progress.epoch_loss = progress.epoch + 1, 0, 0.0
        progress.skipped = 0

    def _step(self) -> tuple[float, bool]:
        """Run one optimizer step. Return this rank's part of its mean loss, and whether the update was applied."""
        progress, strategy = self.progress, self.strategy
        if strategy.trace is not None:
            strategy.trace.begin_iteration(progress.step + 1)
        progress.phase = "pull"
        strategy.step_info = StepInfo(progress.step + 1, progress.epoch + 1, self._rule.scale, self._schedule.rate())
        strategy.begin_step()
        self.model.clear_gradients()
        value, weight = 0.0, 1.0
        if not strategy.needs_global_mean:
            weight = 1 / (self._shares.share_of(self._steps.rows_of(progress.batch), progress.batch) or math.inf)
        parts = self._steps.parts(progress.batch)
        if not parts:
            strategy.before_forward()  # peers may read the last step's gradients until this step's parameters are here
        for number, part in enumerate(parts):
            value += self._compute(
                number, self._shares.share_of(part, progress.batch), weight, last=number == len(parts) - 1
            )
        self.model.complete_gradients()
        progress.phase = "push"
        strategy.after_backward()
        progress.phase = "update"
        apply = self._rule.prepare(progress.step + 1)
        strategy.update(apply)
        self._schedule.after_step()
        return value, apply

    def _compute(self, number: int, share: float, weight: float, last: bool) -> float:
        """Run forward and backward of one part of the step. Return the part's contribution to the step's mean loss.

        :param number: number of the part; ``last``: it is the step's last.
        :param share: share of the part's rows in the step's mean.
        :param weight: factor of the loss for the gradient.
        """
        progress, watch, module = self.progress, self.strategy.watch, self.model.module
        progress.phase = "forward"
        with watch.phase("forward"):
            batch = self._steps.take(progress.batch, number)
            if self._augment is not None:
                batch = self._augment(batch, progress.epoch, progress.batch, number)
            versions = self.model.versions()
            with self.strategy.forward():
                _, loss = self._objective(module, batch)
            if self.model.versions() != versions:
                # Only the owner would keep the change, and other ranks may be reading the parameters right now.
                raise ModelError(
                    "forward changes trainable parameters in place, or their .data (Embedding with max_norm?): only the"
                    " optimizer may"
                )
            self.model.check_trainable()
            value = loss.item()
        if not math.isfinite(value) and not self._rule.can_skip_steps:
            raise NonFiniteLossError(
                f"the loss became {value} on rank {self._rank} at step {progress.step_number}:"
                " lower the learning rate, or look for NaN in the features",
                rank=self._rank,
                step=progress.step_number,
            )
        progress.phase = "backward"
        with watch.phase("backward"), self.strategy.backward(last):
            (loss * (share * weight * self._rule.scale)).backward()  # type: ignore[no-untyped-call]
        return value * share

    def record_eval_output_shape(self) -> None:
        """Record the shape of the model's output in eval mode, after training: it may differ from training mode.

        A rank without rows does nothing. Neither does a rank whose model has collectives, since all ranks would have to
        run it.
        """
        if not self._rows.rows or self._has_collectives:
            return
        module = self.model.module

        def run(rows: int) -> Any:
            index = torch.arange(rows) % self._rows.rows
            with torch.no_grad(), self._objective.autocast():
                return self._objective.output(module, self._rows.take(index, self._device))

        shape = shape_in_eval(run, module)
        if shape is not None:
            self.progress.output_shape = shape

    def _on_first_output(self, output: Any, rows: int) -> None:
        """Record the shape of the first batch's output, and check the labels and what forward has added to the model."""
        module_state.check(self.model.module)
        self.model.check_aliases()
        self.progress.output_shape = shape_of(output, rows)
        if self._spec.labels is not None:
            parts = [self._rows] if self._validation is None else [self._rows, self._validation]
            self._spec.labels.check(output, parts, self._rank)
