"""Base of all simulated runs: one model at a server, workers that compute updates, and a target accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scheduled.conditions import Conditions
from scheduled.flows import Flows
from scheduled.task import Floats, Task

from sparkdl_comm.fabric.core.step_size import step_size
from sparkdl_comm.sim.engine import Engine


@dataclass(frozen=True)
class Job:
    """Training to simulate. Consecutive workers share a host.

    :param workers: number of workers, distributed over the hosts like ranks over slots.
    :param bytes: bytes of an update and of the model on the network.
    :param goal: accuracy to reach.
    :param scale: C of the delay-adaptive step size.
    :param momentum: momentum of the server.
    :param evaluated: updates between evaluations of the accuracy.
    :param limit: virtual seconds after which a run ends without success.
    """

    task: Task
    conditions: Conditions
    workers: int
    bytes: int
    goal: float
    scale: float
    momentum: float = 0.0
    evaluated: int = 30
    limit: float = 3600.0

    def host(self, worker: int) -> int:
        """Return the worker's host. Neighbors in the ring share a host if there are more workers than hosts."""
        return worker * self.conditions.hosts // self.workers


@dataclass
class Outcome:
    """Result of a run.

    :param seconds: virtual time at which the goal was reached; infinity if it was not.
    :param updates: number of updates applied until then.
    :param dropped: number of updates dropped.
    :param accuracy: accuracy of the last evaluation.
    :param delays: delay of each update in updates, including itself.
    :param replicated: bytes that the replica received, if there is one.
    :param norms: sum of the norms of all updates as they were applied.
    """

    seconds: float = math.inf
    updates: int = 0
    dropped: int = 0
    accuracy: float = 0.0
    delays: list[int] = field(default_factory=list)
    replicated: int = 0
    norms: float = 0.0


class Run:
    """Training in virtual time. Subclasses decide what is sent when, starting in ``_begin``."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.outcome = job, Outcome()
        self.engine = Engine()
        self.flows = Flows(self.engine, job.conditions.rates(0))
        self.parameters = job.task.start(seed)
        self.version = 0
        self._step = np.zeros_like(self.parameters)
        self._draws = [np.random.default_rng((seed, 5, worker)) for worker in range(job.workers)]
        self._iterations = [0] * job.workers
        self._looked = 0

    def run(self) -> Outcome:
        self._next_rates(1)
        self._begin()
        self.engine.run(self.job.limit)
        return self.outcome

    def _begin(self) -> None:
        raise NotImplementedError

    def computing_seconds(self, worker: int) -> float:
        """Return the seconds of the worker's next iteration."""
        self._iterations[worker] += 1
        return self.job.conditions.seconds(worker, self._iterations[worker])

    def computed(self, worker: int, parameters: Floats) -> Floats:
        """Return the worker's update of these parameters, before multiplication with a step size."""
        return self.job.task.update(parameters, self._draws[worker])

    def apply(self, updates: Sequence[tuple[Floats, float, int]]) -> None:
        """Apply the sum of updates at the server, in one step.

        :param updates: each update, its step size, and the version that it was computed from.
        """
        self._step *= self.job.momentum
        for update, scale, base in updates:
            self._step += scale * update
            self.outcome.norms += scale * float(np.linalg.norm(update))
            self.version += 1
            self.outcome.delays.append(self.version - base)
        self.parameters = self.parameters + self._step
        self.outcome.updates = self.version
        if self.version // self.job.evaluated > self._looked:
            self._looked = self.version // self.job.evaluated
            self.outcome.accuracy = self.job.task.accuracy(self.parameters)
            if self.outcome.accuracy >= self.job.goal:
                self.outcome.seconds = self.engine.now
                self.engine.stop()

    def scaled(self, version: int, delay: int) -> float:
        """Return the step size of an update after which the model has ``version`` updates."""
        return step_size(self.job.scale, version, delay)

    def _next_rates(self, period: int) -> None:
        def change() -> None:
            rates = self.job.conditions.rates(period)
            self.flows.change(rates)
            self._rates_changed(rates)
            self._next_rates(period + 1)

        self.engine.at(period * self.job.conditions.interval, change)

    def _rates_changed(self, rates: Sequence[tuple[float, float]]) -> None:
        """React to new link rates. Does nothing by default."""
