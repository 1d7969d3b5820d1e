"""Work around the steps of an epoch: callbacks, validation, learning-rate scheduler and early stopping.

At the end of an epoch, in this order. Steps 2 to 5 run only if the settings need them:

1. Buffers and frozen parameters become equal on all ranks (see :mod:`sparkdl_comm.space.untrained_state`).
2. The parameters of the next step are fetched, so that the module is complete.
3. Validation runs, and the ranks add up the epoch's loss.
4. The scheduler steps, then early stopping decides, by the monitored value.
5. ``on_epoch_end`` runs, and the ranks check whether any of them asked to stop.

Ranks communicate here once per epoch, not per step. The exception is a check after the first ``on_step_end``.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.errors import CallbackError, ConfError, ModelError
from sparkdl_comm.gang.exchange import gather_json, gather_tensors
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import VALIDATION_ADVICE, Schedule
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.module_state import deep_copy
from sparkdl_comm.space.untrained_state import UntrainedState, average_state, digests
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.train.callbacks import Callbacks, ParameterGuard, TrainingState
from sparkdl_comm.train.objective import Objective, target_of
from sparkdl_comm.train.spec import Stopping, TrainSpec


class Metrics:
    """Metrics over the rows of all ranks.

    A callable's value is the mean over the rows of its values for the batches. A torchmetrics.Metric has the value that
    it would have in one process with all rows: the ranks exchange its states and merge them as torchmetrics does.
    """

    def __init__(self, metrics: Mapping[str, Any], device: torch.device) -> None:
        self._torchmetrics = {
            name: copy.deepcopy(metric).to(device) for name, metric in metrics.items() if _is_torchmetric(metric)
        }
        self._functions = {name: metric for name, metric in metrics.items() if name not in self._torchmetrics}
        self.reset()

    def reset(self) -> None:
        self._rows = 0
        self._sums = dict.fromkeys(self._functions, 0.0)
        for metric in self._torchmetrics.values():
            metric.reset()

    def update(self, output: Any, target: Any, rows: int) -> None:
        """Add a batch.

        :raises ModelError: a callable does not return a scalar.
        """
        self._rows += rows
        for metric in self._torchmetrics.values():
            metric.update(output, target)
        for name, function in self._functions.items():
            value = function(output, target)
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ModelError(f"metrics[{name!r}]: must return a scalar, not a tensor of shape {tuple(value.shape)}")
            self._sums[name] += float(value) * rows

    def result(self, gang: Gang, timeout: float) -> dict[str, Any]:
        """Return the metrics by name, equal on all ranks: numbers, or lists if a torchmetrics.Metric computes a vector."""
        result: dict[str, Any] = {}
        if self._functions:
            reports = gather_json(gang, {"rows": self._rows, "sums": self._sums}, timeout)
            rows = sum(rank["rows"] for rank in reports)
            result = {name: sum(rank["sums"][name] for rank in reports) / rows for name in self._functions}
        for name, metric in self._torchmetrics.items():
            result[name] = _compute(name, metric, gang, timeout)
        return result


def _compute(name: str, metric: Any, gang: Gang, timeout: float) -> Any:
    def gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        parts = [tensors[0].to(tensor.device) for tensors in gather_tensors(gang, [tensor], timeout)]
        # A rank without rows sends an empty float tensor, which would turn integers into floats.
        return [part for part in parts if part.numel()] or parts

    # compute() merges the ranks' states by these functions, and restores its own state afterwards.
    metric.dist_sync_fn, metric.distributed_available_fn = gather, lambda: True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "compute was called before update", on a rank without rows
        value = metric.compute()
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"metrics[{name!r}]: must compute a tensor, not a {type(value).__name__}")
    return value.item() if value.numel() == 1 else value.tolist()


def _is_torchmetric(metric: Any) -> bool:
    """Return whether ``metric`` is a torchmetrics.Metric, without importing torchmetrics, which is optional."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, module.Metric)


class EarlyStopping:
    """Decision whether an epoch was the last. All ranks see the same values, so all decide the same.

    If asked to restore, it keeps a copy of the best epoch's parameters and ``untrained`` state on the CPU, as large as
    the model.
    """

    def __init__(self, stopping: Stopping, model: FlatModel, untrained: UntrainedState) -> None:
        self._stopping, self._model, self._untrained = stopping, model, untrained
        self._best_value: float | None = None
        self._epochs_waited = 0
        self._best_tensors: dict[str, torch.Tensor] | None = None
        self._best_extra: dict[str, Any] = {}

    @property
    def is_active(self) -> bool:
        return self._stopping.patience is not None

    def should_stop(self, value: float) -> bool:
        """Return whether training should stop.

        :param value: monitored value of the epoch that has ended. The model has this epoch's parameters.
        """
        assert self._stopping.patience is not None
        if self._has_improved(value):
            self._best_value, self._epochs_waited = value, 0
            if self._stopping.restore:
                # The key "" is free: all other tensors have names that are not empty.
                self._best_tensors = {"": self._model.values.detach().cpu().clone()}
                for name, tensor in self._untrained.tensors().items():
                    self._best_tensors[name] = tensor.detach().cpu().clone()
                self._best_extra = deep_copy(self._untrained.extra())
            return False
        self._epochs_waited += 1
        return self._epochs_waited >= self._stopping.patience

    def restore(self) -> None:
        """Load the best epoch's parameters and untrained state into the model, if they were kept."""
        if self._best_tensors is None:
            return
        with torch.no_grad():
            self._model.values.copy_(self._best_tensors[""])
        self._untrained.load({name: tensor for name, tensor in self._best_tensors.items() if name})
        self._untrained.load_extra(self._best_extra)

    def state(self) -> dict[str, Any]:
        return {
            "best": self._best_value,
            "waited": self._epochs_waited,
            "kept": self._best_tensors,
            "extra": self._best_extra,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._best_value, self._epochs_waited = state["best"], state["waited"]
        self._best_tensors, self._best_extra = state["kept"], state["extra"]

    def _has_improved(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self._best_value is None:
            return True
        gain = value - self._best_value if self._stopping.mode == "max" else self._best_value - value
        return gain > self._stopping.min_delta


class Evaluation:
    """Evaluation of the model on the validation rows.

    :param rows: validation rows of this rank, perhaps none.
    :param batch: rows per forward pass.
    """

    def __init__(self, rows: RowCache, batch: int, objective: Objective, metrics: Metrics) -> None:
        self._rows, self._batch = rows, batch
        self._objective, self._metrics = objective, metrics

    def run(self, module: torch.nn.Module, gang: Gang, timeout: float) -> dict[str, Any]:
        """Return ``val_loss``, the weighted mean over the rows of all ranks, and metrics by name; equal on all ranks.

        All ranks call it. It runs in eval mode without gradients, and leaves the module in train mode.
        """
        self._metrics.reset()
        total = weight = 0.0
        module.eval()
        with torch.no_grad(), self._objective.eval_mode():
            for index in torch.split(torch.arange(self._rows.rows), self._batch):
                if not len(index):
                    continue
                batch = self._rows.take(index, self._objective.device)
                output, loss = self._objective(module, batch)
                divisor, count = self._objective.sizes(batch)
                total += loss.item() * divisor
                weight += count
                self._metrics.update(_as_float32(output), target_of(batch), len(index))
        module.train()
        sums = gather_json(gang, [total, weight], timeout)
        mean = sum(part[0] for part in sums) / sum(part[1] for part in sums)
        return {"val_loss": mean, **self._metrics.result(gang, timeout)}


def _as_float32(output: Any) -> Any:
    """Return a 16-bit output as float32, so that metrics do not depend on the precision of the forward pass."""
    is_half = isinstance(output, torch.Tensor) and output.dtype in (torch.bfloat16, torch.float16)
    return output.float() if is_half else output


class Observer:
    """Runner of the work around an epoch's steps, in the same order on all ranks.

    :param validation: this rank's validation rows, perhaps none. None: no rank has any.
    """

    def __init__(
        self,
        spec: TrainSpec,
        gang: Gang,
        model: FlatModel,
        strategy: Strategy,
        schedule: Schedule,
        objective: Objective,
        validation: RowCache | None,
        untrained: UntrainedState,
    ) -> None:
        self._gang, self._timeout = gang, spec.conf.timeout
        self._model, self._strategy, self._schedule, self._untrained = model, strategy, schedule, untrained
        observed = spec.observation
        self._monitor = observed.stopping.monitor
        if schedule.needs_value and validation is None and self._monitor != "loss":
            raise ConfError(
                f"ReduceLROnPlateau watches earlyStoppingMonitor={self._monitor!r}, which needs validation rows;"
                f" {VALIDATION_ADVICE}, or earlyStoppingMonitor='loss'"
            )
        self.stopping = EarlyStopping(observed.stopping, model, untrained)
        self._evaluation = None
        if validation is not None:
            metrics = Metrics(observed.metrics, objective.device)
            batch = -(-spec.batch_size // spec.world)
            self._evaluation = Evaluation(validation, batch, objective, metrics)
        # A copy for each rank, even if the process was forked or is reused.
        self.callbacks = Callbacks(
            copy.deepcopy(observed.callbacks),
            TrainingState(gang.rank, gang.world, model.module),
            ParameterGuard(model, strict=not strategy.can_take_changes),
        )
        #: Step of the last check that found equal parameters on all ranks.
        self._equal_at: int | None = None
        self._must_compare = strategy.can_take_changes and bool(self.callbacks.find_overriding("on_step_end"))

    def step_end(self, step: int, loss: float | None) -> None:
        """``loss``: the mean over this rank's rows in the step, if it had any. All ranks call it after each common step.

        :raises CallbackError: a callback raises, or ranks have other parameters after the first ``on_step_end``.
        """
        self.callbacks.call("on_step_end", step=step, loss=loss)
        if self._must_compare:
            self._must_compare = False
            self._compare()

    def epoch_end(self, row: dict[str, Any], rows: int) -> bool:
        """Run the end of an epoch. Return whether training should stop, the same on all ranks.

        :param row: row of the history with this rank's part of the loss. Validation adds its values to the row.
        :param rows: number of this rank's rows.
        :raises CallbackError: a callback raises.
        :raises ConfError: the history has no column for the monitored value.
        """
        average_state(self._untrained, rows, self._gang, self._timeout)
        if not (self._evaluation or self.stopping.is_active or self.callbacks or self._schedule.needs_value):
            self._schedule.after_epoch()
            return False
        self._strategy.before_forward()
        if self._evaluation is not None:
            row.update(self._evaluation.run(self._model.module, self._gang, self._timeout))
        global_row = {**row, "loss": sum(gather_json(self._gang, row["loss"], self._timeout))}
        self._schedule.after_epoch(self._monitored_value(global_row) if self._schedule.needs_value else None)
        should_stop = self.stopping.is_active and self.stopping.should_stop(self._monitored_value(global_row))
        if self.callbacks:
            self.callbacks.call(
                "on_epoch_end", epoch=row["epoch"], step=row["step"], loss=global_row["loss"], metrics=global_row
            )
            if self._strategy.can_take_changes:
                self._compare()
            should_stop |= any(gather_json(self._gang, self.callbacks.state.stop_requested, self._timeout))
        return should_stop

    def train_end(self) -> None:
        """Restore the best parameters if asked to, and call ``on_train_end``. All ranks have the final parameters."""
        if self.stopping.is_active:
            self.stopping.restore()
        self.callbacks.call("on_train_end")

    def _compare(self) -> None:
        """Check that the hooks that have run since the last check changed the parameters equally on all ranks.

        :raises CallbackError: some ranks have other parameters.
        """
        step, hooks = self.callbacks.state.step, self.callbacks.clear_called()
        if not hooks:
            return
        hashes = gather_json(self._gang, digests({"": self._model.values})[""], self._timeout)
        if len(set(hashes)) > 1:
            since = "" if self._equal_at is None else f" since step {self._equal_at}, when all had equal ones"
            raise CallbackError(
                f"at step {step} some ranks have other parameters than rank 0. These hooks have run{since}:"
                f" {', '.join(hooks)}. A callback must change parameters equally on all ranks (no `if state.rank == 0`, no"
                " random numbers).",
                step=step,
                phase="callback",
            )
        self._equal_at = step

    def _monitored_value(self, row: dict[str, Any]) -> float:
        name = self._monitor
        value = row.get(name)
        if not isinstance(value, float):
            numbers = sorted(key for key in row if key == "loss" or key == "val_loss" or isinstance(row[key], float))
            raise ConfError(f"earlyStoppingMonitor={name!r}: must be one of {', '.join(numbers)}")
        return value
