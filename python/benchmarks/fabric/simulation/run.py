"""Simulated runs: one model at a server, workers that compute updates, and a target accuracy. Here the fabric's rivals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from benchmarks.fabric.conditions import Conditions
from benchmarks.fabric.simulation.task import Floats, Task

from sparkdl_comm.fabric.params import step_size
from sparkdl_comm.sim.engine import Action, Engine, Links


def capacities(rates: Iterable[tuple[float, float]]) -> list[float]:
    """Return the capacities of all links from the rates of every host, bytes per second out and in."""
    return [rate for pair in rates for rate in pair]


def path(source: int, target: int) -> tuple[int, ...]:
    """Return the links from host to host; none within a host."""
    return () if source == target else (2 * source, 2 * target + 1)


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
        self.links = Links(self.engine, capacities(job.conditions.rates(0)))
        self.parameters = job.task.start(seed)
        self.version = 0
        self._step = np.zeros_like(self.parameters)
        self._draws = [np.random.default_rng((seed, 5, worker)) for worker in range(job.workers)]
        self._iterations = [0] * job.workers
        self._evaluations = 0

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

    def send(self, source: int, target: int, done: Action) -> None:
        """Send an update, or the model, from host to host. ``done`` is called on arrival."""
        self.links.start(path(source, target), self.job.bytes, done)

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
        if self.version // self.job.evaluated > self._evaluations:
            self._evaluations = self.version // self.job.evaluated
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
            self.links.change(capacities(rates))
            self._rates_changed(rates)
            self._next_rates(period + 1)

        self.engine.at(period * self.job.conditions.interval, change)

    def _rates_changed(self, rates: Sequence[tuple[float, float]]) -> None:
        """React to new link rates. Does nothing by default."""


class RingRun(Run):
    """Run of synchronous training: all workers compute, then a ring all-reduce at the pace of the slowest NIC.

    :param passes: how often the ring uses each NIC. 1 if it visits host after host. The paper's ring uses a host's NIC
        once for each of its two workers: 320 ms for 100 MB at 10 Gbit/s (section 2).
    """

    def __init__(self, job: Job, seed: int, passes: int = 1) -> None:
        super().__init__(job, seed)
        self._size = passes * 2 * (job.workers - 1) / job.workers * job.bytes

    def _begin(self) -> None:
        workers = range(self.job.workers)
        seconds = max(map(self.computing_seconds, workers))
        updates = [self.computed(worker, self.parameters) for worker in workers]
        all_links = tuple(range(2 * self.job.conditions.hosts))
        self.engine.after(seconds, lambda: self.links.start(all_links, self._size, lambda: self._reduced(updates)))

    def _reduced(self, updates: list[Floats]) -> None:
        base = self.version
        self.apply([(update, self.scaled(base + delay, delay), base) for delay, update in enumerate(updates, 1)])
        self._begin()


class AsyncRun(Run):
    """Run of plain asynchronous training. The server is on the last host, and transfers share links fairly.

    Every worker sends its updates to the server, and gets the model when its update was applied.
    """

    def _begin(self) -> None:
        for worker in range(self.job.workers):
            self._compute(worker, self.parameters, self.version)

    def _compute(self, worker: int, model: Floats, base: int) -> None:
        def push() -> None:
            update = self.computed(worker, model)
            self.send(self.job.host(worker), self._server, lambda: self._arrived(worker, update, base))

        self.engine.after(self.computing_seconds(worker), push)

    def _arrived(self, worker: int, update: Floats, base: int) -> None:
        version = self.version + 1
        self.apply([(update, self.scaled(version, version - base), base)])
        model = self.parameters
        self.send(self._server, self.job.host(worker), lambda: self._compute(worker, model, version))

    @property
    def _server(self) -> int:
        return self.job.conditions.hosts + self.job.conditions.steady - 1
