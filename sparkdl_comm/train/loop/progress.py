"""How far a rank has come with its training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkdl_comm.train.loop.output_shape import OutputShape

_OF_A_STEP = ("pull", "forward", "backward", "push", "update")


@dataclass
class Progress:
    """How far a rank has come.

    ``step``: optimizer steps done, through all epochs. ``epoch``: the current one, from 0; ``batch``: steps done in it;
    ``skipped``: how many of these the optimizer left out; ``epoch_loss``: sum of this rank's parts of the others' losses.
    ``history``: a row per finished epoch, with this rank's part of the loss. ``stopped``: there are to be no more steps.
    ``phase`` is for messages about a failure.
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
    def number(self) -> int | None:
        """Of the step that is being done, or else of the last one, from 1; None before the first."""
        return self.step + 1 if self.phase in _OF_A_STEP else self.step or None
