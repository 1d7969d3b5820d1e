"""Progress of one rank's training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkdl_comm.train.loop.output_shape import OutputShape

_STEP_PHASES = ("pull", "forward", "backward", "push", "update")


@dataclass
class Progress:
    """Progress of one rank.

    :param step: optimizer steps done, through all epochs.
    :param epoch: the current epoch, from 0.
    :param batch: steps done in the current epoch.
    :param skipped: how many of these steps the optimizer skipped.
    :param epoch_loss: sum of this rank's parts of the losses of the steps that were not skipped.
    :param history: a row per finished epoch, with this rank's part of the loss.
    :param stopped: training has ended early; there are no more steps.
    :param output_shape: shape of the model's output for one row.
    :param phase: current phase of the training, for messages about a failure.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    skipped: int = 0
    epoch_loss: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False
    output_shape: OutputShape | None = None
    phase: str = "set-up"

    @property
    def step_number(self) -> int | None:
        """Number of the current step, or of the last one between steps, from 1. None before the first step."""
        return self.step + 1 if self.phase in _STEP_PHASES else self.step or None
