"""Simulated rivals of the fabric: plain asynchronous training, and synchronous training by a ring all-reduce.

Asynchronous: every worker sends its updates to the server, and gets the model when its update was applied. Links are shared
fairly among all transfers. Synchronous: when all workers have computed, a ring all-reduce, then the next iteration. All links
of a ring carry the same bytes at the pace of the slowest NIC in the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fabric.simulation.run import Job, Run
from benchmarks.fabric.simulation.task import Floats


class RingRun(Run):
    """Run of synchronous training.

    :param passes: how often the ring uses each NIC. 1 if it visits host after host. The paper's ring uses a host's NIC
        once for each of its two workers: 320 ms for 100 MB at 10 Gbit/s (section 2).
    """

    def __init__(self, job: Job, seed: int, passes: int = 1) -> None:
        super().__init__(job, seed)
        self._passes = passes
        self._pace = self._slowest(job.conditions.rates(0))
        self._left = 0.0
        self._since = 0.0
        self._generation = 0
        self._updates: list[Floats] = []

    def _begin(self) -> None:
        version = self.version
        seconds = max(self.computing_seconds(worker) for worker in range(self.job.workers))
        self._updates = [self.computed(worker, self.parameters) for worker in range(self.job.workers)]
        self.engine.after(seconds, lambda: self._reduce(version))

    def _reduce(self, version: int) -> None:
        workers = self.job.workers
        self._left = self._passes * 2 * (workers - 1) / workers * self.job.bytes
        self._since = self.engine.now
        self._wait(version)

    def _wait(self, version: int) -> None:
        self._generation += 1
        generation = self._generation

        def complete() -> None:
            if generation == self._generation:
                self._left = 0.0
                self._update(version)

        self.engine.after(self._left / self._pace, complete)

    def _update(self, version: int) -> None:
        after = range(version + 1, version + 1 + len(self._updates))
        self.apply(
            [(update, self.scaled(at, at - version), version) for at, update in zip(after, self._updates, strict=True)]
        )
        self._begin()

    def _rates_changed(self, rates: Sequence[tuple[float, float]]) -> None:
        if self._left:
            self._left = max(0.0, self._left - self._pace * (self.engine.now - self._since))
            self._since = self.engine.now
        self._pace = self._slowest(rates)
        if self._left:
            self._wait(self.version)

    def _slowest(self, rates: Sequence[tuple[float, float]]) -> float:
        return min(min(pair) for pair in rates[: self.job.conditions.hosts])


class AsyncRun(Run):
    """Run of plain asynchronous training. The server is on the last host."""

    def _begin(self) -> None:
        for worker in range(self.job.workers):
            self._compute(worker)

    def _compute(self, worker: int) -> None:
        parameters, base = self.parameters, self.version
        self.engine.after(
            self.computing_seconds(worker), lambda: self._push(worker, self.computed(worker, parameters), base)
        )

    def _push(self, worker: int, update: Floats, base: int) -> None:
        self.flows.start(
            self.job.host(worker), self._server, self.job.bytes, lambda: self._arrived(worker, update, base)
        )

    def _arrived(self, worker: int, update: Floats, base: int) -> None:
        version = self.version + 1
        self.apply([(update, self.scaled(version, version - base), base)])
        parameters, base = self.parameters, self.version

        def begin() -> None:
            seconds = self.computing_seconds(worker)
            self.engine.after(seconds, lambda: self._push(worker, self.computed(worker, parameters), base))

        self.flows.start(self._server, self.job.host(worker), self.job.bytes, begin)

    @property
    def _server(self) -> int:
        return self.job.conditions.hosts + self.job.conditions.steady - 1
