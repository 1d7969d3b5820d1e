"""How a model became better: copies of it with their times, which are looked at when the run is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Moment(NamedTuple):
    """``seconds`` since the beginning; ``updates`` that were in the model."""

    seconds: float
    updates: int
    score: float


class Curve:
    """Time counts from when it is made.

    :param every: updates after which the model is copied.
    :param clock: seconds, from any beginning.
    """

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock, self._begun = every, clock, clock()
        self._copies: list[tuple[float, int, np.ndarray]] = []

    def add(self, updates: int, model: np.ndarray) -> None:
        """The model has so many updates now, float32 ``[n]``."""
        if not self._copies or updates // self._every > self._copies[-1][1] // self._every:
            self._copies.append((self._clock() - self._begun, updates, model.copy()))

    @property
    def last(self) -> np.ndarray | None:
        """The model when it was copied last; None if it never was."""
        return self._copies[-1][2] if self._copies else None

    def moments(self, score: Callable[[np.ndarray], float]) -> list[Moment]:
        return [Moment(seconds, updates, score(model)) for seconds, updates, model in self._copies]


def first(moments: list[Moment], reached: Callable[[float], bool]) -> Moment | None:
    """When the goal was reached; None if it never was."""
    return next((moment for moment in moments if reached(moment.score)), None)
