"""The training loop of one rank. What travels between ranks, and how, is the strategy's business."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.partitions import BatchPlan, permutation
from sparkdl_comm.errors import ModelError, NonFiniteLossError
from sparkdl_comm.train.flat import FlatModel
from sparkdl_comm.train.spec import TrainSpec
from sparkdl_comm.train.strategy import Strategy


@dataclass
class Progress:
    """Where a rank stands; steps count through all epochs. `phase` is for messages about a failure."""

    step: int = 0
    phase: str = "set-up"
    epoch_losses: list[float] = field(default_factory=list)
    output_shape: list[int] | None = None


class TrainingLoop:
    """Steps of an epoch: this rank's slice of the batch, forward, backward, strategy.

    A step's loss is the mean over the rows that all ranks have in it. So a rank scales its own mean by its share of these
    rows, and a rank without a row in the step takes part with gradient zero.
    """

    def __init__(
        self,
        spec: TrainSpec,
        rank: int,
        rows: RowCache,
        plan: BatchPlan,
        model: FlatModel,
        strategy: Strategy,
        progress: Progress,
    ) -> None:
        self._spec, self._rank, self._rows, self._plan = spec, rank, rows, plan
        self._model, self._strategy, self._progress = model, strategy, progress
        self._device = next(model.module.parameters()).device

    def run(self, tell: Callable[[dict[str, Any]], None]) -> float:
        """Trains all epochs. `tell` gets a progress dict after each step. Returns seconds.

        Raises NonFiniteLossError when this rank's loss is NaN or infinite.
        """
        begin = time.perf_counter()
        self._model.module.train()
        for epoch in range(self._spec.epochs):
            order = torch.from_numpy(permutation(self._rows.rows, self._spec.seed, epoch, self._rank))
            epoch_begin, epoch_loss, rows = time.perf_counter(), 0.0, 0
            for step in range(self._plan.steps):
                start, stop = self._plan.slice(self._rank, step)
                loss = self._step(order[start:stop], (stop - start) / self._plan.rows(step))
                epoch_loss += loss
                rows += self._plan.rows(step)
                self._progress.step += 1
                share = (stop - start) / self._plan.rows(step)
                tell(
                    {
                        "epoch": epoch,
                        "epochs": self._spec.epochs,
                        "step": step + 1,
                        "steps": self._plan.steps,
                        "loss": loss / share if share else None,
                        "samples_per_second": rows / (time.perf_counter() - epoch_begin),
                    }
                )
            self._progress.epoch_losses.append(epoch_loss / self._plan.steps)
        self._progress.phase = "finish"
        self._strategy.finish()
        return time.perf_counter() - begin

    def _step(self, index: torch.Tensor, share: float) -> float:
        """One step; returns this rank's part of the step's mean loss."""
        watch, module = self._strategy.watch, self._model.module
        self._progress.phase = "pull"
        self._strategy.before_forward()
        self._model.clear_gradients()
        value = 0.0
        if len(index):
            self._progress.phase = "forward"
            with watch.phase("forward"):
                batch = self._rows.take(index, self._device)
                versions = self._model.versions()
                output = module(*batch.inputs)
                if self._model.versions() != versions:
                    # Only the rank that owns them would keep the change, and others may be reading them right now.
                    raise ModelError(
                        "forward changes trainable parameters in place (Embedding with max_norm?): only the optimizer may"
                    )
                (target,) = batch.targets
                loss = self._spec.loss(_matched(output, target), target)
                self._check(loss)
                value = loss.item()
            if self._progress.output_shape is None and isinstance(output, torch.Tensor):
                self._progress.output_shape = list(output.shape[1:])
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"the loss became {value} on rank {self._rank} at step {self._progress.step}:"
                    " lower the learning rate, or look for NaN in the features",
                    rank=self._rank,
                    step=self._progress.step,
                )
            self._progress.phase = "backward"
            with watch.phase("backward"):
                (loss * share).backward()
        self._model.complete_gradients()
        self._progress.phase = "push"
        self._strategy.after_backward()
        return value * share

    def _check(self, loss: Any) -> None:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ModelError(f"loss: must return a scalar tensor (the mean over the rows), not {shape}")


def _matched(output: Any, labels: torch.Tensor) -> Any:
    """A column of values, [rows, 1], as [rows] like its float labels: they would broadcast to [rows, rows]."""
    if isinstance(output, torch.Tensor) and labels.is_floating_point() and output.shape == (len(labels), 1):
        return output.squeeze(1)
    return output
