"""What is trained: a task has a model, as flat numbers, and says how good one is; learners compute updates of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Learner(Protocol):
    """One worker's part. What it knows of its own is no part of the model."""

    def update(self, model: np.ndarray) -> np.ndarray:
        """What is to be added to the model, float32 ``[n]``, computed from this one."""

    def settle(self, applied: bool) -> None:
        """Whether the last update was added to the model; otherwise it was dropped."""


class Task(Protocol):
    """``elements``: of the model."""

    elements: int

    def start(self) -> np.ndarray:
        """The model to begin with, float32 ``[n]``, the same each time."""

    def learner(self, worker: int, workers: int) -> Learner:
        """That of one of the workers."""

    def score(self, model: np.ndarray) -> float:
        """How good a model is, on data that it does not learn from: the accuracy, or the perplexity."""
