"""How fast workers of the fabric go on that always take as long to compute: in virtual time, by the scheduler's core."""

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

#: Rounds that are run, and how many of the first ones are not told: of as many updates as there are workers.
_RUN, _FIRST = 10, 2
#: Times what a round takes if nothing overlaps, after which a run is given up.
_PATIENCE = 3


def seconds_per_round(
    computing: Sequence[float], hosts: int, nbytes: int, rate: float, sync: str, interval: float
) -> float:
    """Seconds in which as many updates are applied as there are workers; infinity if hardly any are.

    The server has a host of its own here. What processes of one host send each other takes no time.

    :param computing: of each worker, seconds that an update takes.
    :param hosts: on which they are, neighbours on one.
    :param nbytes: of an update, and of the model.
    :param rate: bytes per second of each NIC, each way.
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
    """Nothing changes. ``of_each``: seconds of a worker's iteration; ``rate``: of every NIC."""

    of_each: tuple[float, ...] = ()
    rate: float = 1.0

    def rates(self, period: int) -> list[tuple[float, float]]:
        return [(self.rate, self.rate)] * (self.hosts + self.steady)

    def seconds(self, worker: int, iteration: int) -> float:
        return self.of_each[worker]


class _Counting(FabricRun):
    """``applied``: when each update was."""

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
    """To learn."""
    row, label = np.zeros((1, 1)), np.zeros(1, np.int64)
    return Task(row, label, row, label, hidden=1, batch=1)
