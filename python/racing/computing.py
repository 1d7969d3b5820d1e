"""How long a worker computes: as long as it is said to, and now and then a multiple of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from lab.emulated import STRAGGLERS, Pace, Stragglers

#: C0 is without stragglers.
SETTINGS = {"C0": Stragglers(0.0, 1.0), **STRAGGLERS}


def generator(seed: int, worker: int) -> torch.Generator:
    """Of what is drawn for a worker's steps."""
    return torch.Generator().manual_seed(1000 * seed + worker)


class Computing:
    """What is really computed is a part of ``seconds``, if it does not take longer. ``setting``: of SETTINGS, drawn for each
    step; the same seed and worker give the same draws."""

    def __init__(
        self,
        seconds: float,
        setting: str,
        seed: int,
        worker: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds, self._stragglers = seconds, SETTINGS[setting]
        self._draw = generator(seed, worker)
        self._pace = Pace(clock, sleep)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The body is a step's computing."""
        self._pace.slowdown = self._stragglers.draw(self._draw)
        with self._pace.lasting(self._seconds):
            yield
