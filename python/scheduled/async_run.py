"""Plain asynchronous training: every worker sends its updates to the server, and gets the model when its update was
applied.

Links are shared fairly among all transfers.
"""

from __future__ import annotations

from scheduled.run import Run
from scheduled.task import Floats


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
