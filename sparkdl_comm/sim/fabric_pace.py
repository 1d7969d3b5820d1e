"""Pace of fabric workers with constant compute times, in virtual time, by the scheduler's core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl_comm.fabric.core.synchrony import Synchrony
from sparkdl_comm.sim.conditions import Conditions
from sparkdl_comm.sim.fabric_run import Control, FabricRun
from sparkdl_comm.sim.run import Job
from sparkdl_comm.sim.task import Floats, Task

#: Rounds to simulate, and how many of the first ones to ignore. A round has one update per worker.
_RUN, _FIRST = 10, 2
#: Limit of a run, as a multiple of the time of all rounds without any overlap.
_PATIENCE = 3


def seconds_per_round(
    computing: Sequence[float], hosts: int, nbytes: int, rate: float, sync: str, interval: float
) -> float:
    """Return the seconds in which one update per worker is applied; infinity if hardly any are applied.

    The server has a separate host here. Transfers within a host take no time.

    :param computing: seconds per update, of each worker.
    :param hosts: number of the workers' hosts. Consecutive workers share a host.
    :param nbytes: bytes of an update, and of the model.
    :param rate: bytes per second of each NIC, in each direction.
    :param sync: as ``spark.sparkdl.comm.fabric.sync``.
    :param interval: seconds, as ``spark.sparkdl.comm.fabric.batchInterval``.
    """
    world = len(computing)
    alone = max(computing) + 2 * world * nbytes / rate + interval
    even = _Even("C0", "N0", hosts, 1, 0, math.inf, computing=0.0, of_each=tuple(computing), rate=rate)
    job = Job(_nothing(), even, world, nbytes, math.inf, 1.0, limit=_PATIENCE * _RUN * alone)
    run = _Counting(job, 0, Synchrony.parse(sync), Control(interval))
    run.run()
    ends = run.applied[_FIRST * world - 1 :]
    return (ends[-1] - ends[0]) / (len(ends) - 1) * world if len(ends) > world else math.inf


@dataclass(frozen=True)
class _Even(Conditions):
    """Constant conditions. ``of_each``: seconds of each worker's iteration. ``rate``: bytes per second of every NIC."""

    of_each: tuple[float, ...] = ()
    rate: float = 1.0

    def rates(self, period: int) -> list[tuple[float, float]]:
        return [(self.rate, self.rate)] * (self.hosts + self.steady)

    def seconds(self, worker: int, iteration: int) -> float:
        return self.of_each[worker]


class _Counting(FabricRun):
    """Run that records when updates are applied. ``applied``: virtual seconds of each."""

    applied: list[float]

    def _begin(self) -> None:
        self.applied = []
        super()._begin()

    def apply(self, updates: Sequence[tuple[Floats, float, int]]) -> None:
        super().apply(updates)
        self.applied += [self.engine.now] * len(updates)
        if len(self.applied) >= _RUN * self.job.workers:
            self.engine.stop()


def _nothing() -> Task:
    """Return a task with nothing to learn."""
    row, label = np.zeros((1, 1)), np.zeros(1, np.int64)
    return Task(row, label, row, label, hidden=1, batch=1)
