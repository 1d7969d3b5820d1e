"""Base of all simulated runs: one model at a server, workers that compute updates, and a target accuracy.

Hosts' compute times and link rates over time are drawn from a seed, so they are equal for every system: Raajay Viswanathan
and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from benchmarks.fabric.simulation.flows import Flows
from benchmarks.fabric.simulation.task import Floats, Task

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.params import step_size
from sparkdl_comm.sim.engine import Engine

GBIT = 1e9 / 8

#: Compute settings: probability that an iteration is slowed down, and the slowdown factor.
STRAGGLERS = {"C0": (0.0, 1.0), "C1": (0.1, 2.0), "C2": (0.1, 4.0), "C3": (0.04, 2.0)}
#: Possible rates of a NIC in one direction, bytes per second.
RATES = tuple(rate * GBIT for rate in (1, 2.5, 3.3, 5, 10))
#: Network settings: probability of each of :data:`RATES`.
LIKELY = {
    "N0": (0.0, 0.0, 0.0, 0.0, 1.0),
    "N1": (0.0, 0.0, 0.0, 0.1, 0.9),
    "N2": (0.0, 0.1, 0.1, 0.1, 0.7),
    "N3": (0.5, 0.0, 0.0, 0.0, 0.5),
}


@dataclass(frozen=True)
class Conditions:
    """Compute and network setting, such as C1 and N2, for a number of hosts.

    :param steady: number of additional hosts whose links always have the fastest rate, such as those of the servers.
    :param interval: seconds after which rates are drawn again.
    :param computing: seconds of a worker's iteration without slowdown.
    :raises InputError: there is no such setting.
    """

    compute: str
    network: str
    hosts: int
    steady: int
    seed: int
    interval: float = 5.0
    computing: float = 0.1

    def __post_init__(self) -> None:
        if self.compute not in STRAGGLERS or self.network not in LIKELY:
            known = f"{', '.join(STRAGGLERS)} and {', '.join(LIKELY)}"
            raise InputError(f"setting {self.compute}-{self.network}: there are {known}.")

    def rates(self, period: int) -> list[tuple[float, float]]:
        """Return the rates of every host in the ``period``-th interval, bytes per second out and in."""
        drawn = np.random.default_rng((self.seed, 1, period)).choice(
            RATES, size=(self.hosts, 2), p=LIKELY[self.network]
        )
        return [(float(out), float(into)) for out, into in drawn] + [(RATES[-1], RATES[-1])] * self.steady

    def seconds(self, worker: int, iteration: int) -> float:
        """Return the seconds that this worker computes in an iteration."""
        chance, factor = STRAGGLERS[self.compute]
        slow = np.random.default_rng((self.seed, 2, worker, iteration)).random() < chance
        return self.computing * (factor if slow else 1.0)


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
