"""Simulated runs: one model at a server, workers that compute updates, and a target accuracy. Here the fabric's rivals.

The task is a classification of random points by a numpy network with one hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from benchmarks.fabric.conditions import Conditions
from numpy.typing import NDArray

from sparkdl_comm.fabric.params import step_size
from sparkdl_comm.sim.engine import Action, Engine, Links

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Training and test rows of a classification task.

    :param features: training rows ``[rows, columns]``.
    :param labels: class numbers of the training rows.
    :param hidden: units of the hidden layer.
    :param batch: rows per update.
    """

    features: Floats
    labels: NDArray[np.int64]
    test_features: Floats
    test_labels: NDArray[np.int64]
    hidden: int = 32
    batch: int = 32

    @classmethod
    def points(cls, seed: int, rows: int = 6000, columns: int = 40, classes: int = 10, spread: float = 1.8) -> Task:
        """Return a task of point clouds, two per class. They overlap more the larger ``spread`` is."""
        draw = np.random.default_rng((seed, 3))
        centres = draw.normal(size=(2 * classes, columns))
        cloud = draw.integers(2 * classes, size=rows + rows // 4)
        features = centres[cloud] + spread * draw.normal(size=(len(cloud), columns))
        labels = cloud % classes
        return cls(features[:rows], labels[:rows], features[rows:], labels[rows:])

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def start(self, seed: int) -> Floats:
        """Return initial parameters, flat."""
        draw = np.random.default_rng((seed, 4))
        columns = self.features.shape[1]
        first = draw.normal(scale=columns**-0.5, size=(columns, self.hidden))
        second = draw.normal(scale=self.hidden**-0.5, size=(self.hidden, self.classes))
        return np.concatenate([first.ravel(), np.zeros(self.hidden), second.ravel(), np.zeros(self.classes)])

    def update(self, parameters: Floats, draw: np.random.Generator) -> Floats:
        """Return minus the gradient of the mean cross-entropy of a batch drawn by ``draw``, flat."""
        rows = draw.integers(len(self.labels), size=self.batch)
        inputs, labels = self.features[rows], self.labels[rows]
        first, bias, second, other = self._parts(parameters)
        between = np.maximum(inputs @ first + bias, 0.0)
        error = _softmax(between @ second + other)
        error[np.arange(self.batch), labels] -= 1.0
        error /= self.batch
        back = (error @ second.T) * (between > 0)
        gradients = (inputs.T @ back, back.sum(axis=0), between.T @ error, error.sum(axis=0))
        gradient: Floats = np.concatenate([part.ravel() for part in gradients])
        return -gradient

    def accuracy(self, parameters: Floats) -> float:
        """Return the share of test rows whose class is predicted correctly."""
        first, bias, second, other = self._parts(parameters)
        scores = np.maximum(self.test_features @ first + bias, 0.0) @ second + other
        return float((scores.argmax(axis=1) == self.test_labels).mean())

    def _parts(self, parameters: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        columns, hidden, classes = self.features.shape[1], self.hidden, self.classes
        cuts = np.cumsum([columns * hidden, hidden, hidden * classes])
        first, bias, second, other = np.split(parameters, cuts)
        return first.reshape(columns, hidden), bias, second.reshape(hidden, classes), other


def _softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    total: Floats = raised.sum(axis=1, keepdims=True)
    return raised / total


def capacities(rates: Iterable[tuple[float, float]]) -> list[float]:
    """Return the capacities of all links from the rates of every host, bytes per second out and in."""
    return [rate for pair in rates for rate in pair]


def path(source: int, target: int) -> tuple[int, ...]:
    """Return the links from host to host; none within a host."""
    return () if source == target else (2 * source, 2 * target + 1)


@dataclass(frozen=True)
class Job:
    """Training to simulate. Each worker has its own host.

    :param bytes: bytes of an update and of the model on the network.
    :param goal: accuracy to reach.
    :param scale: C of the delay-adaptive step size.
    :param evaluated: updates between evaluations of the accuracy.
    :param limit: virtual seconds after which a run ends without success.
    """

    task: Task
    conditions: Conditions
    bytes: int
    goal: float
    scale: float
    evaluated: int = 30
    limit: float = 3600.0

    @property
    def workers(self) -> int:
        return self.conditions.hosts


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
        step = np.zeros_like(self.parameters)
        for update, scale, base in updates:
            step += scale * update
            self.outcome.norms += scale * float(np.linalg.norm(update))
            self.version += 1
            self.outcome.delays.append(self.version - base)
        self.parameters = self.parameters + step
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
        all_links = tuple(range(2 * self.job.workers))
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
            self.send(worker, self._server, lambda: self._arrived(worker, update, base))

        self.engine.after(self.computing_seconds(worker), push)

    def _arrived(self, worker: int, update: Floats, base: int) -> None:
        version = self.version + 1
        self.apply([(update, self.scaled(version, version - base), base)])
        model = self.parameters
        self.send(self._server, worker, lambda: self._compute(worker, model, version))

    @property
    def _server(self) -> int:
        return self.job.workers + self.job.conditions.steady - 1
