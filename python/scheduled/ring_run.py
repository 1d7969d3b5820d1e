"""Simulated synchronous training: when all workers have computed, a ring all-reduce, then the next iteration.

All links of a ring carry the same bytes at the pace of the slowest NIC in the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduled.run import Job, Run
from scheduled.task import Floats


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
