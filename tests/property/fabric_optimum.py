"""The best that any schedule can do for a tiny batch: the integer linear program of the MLfabric paper, solved by HiGHS.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 10.1: for
every update the next hop, and at every time the rate; an aggregator sends when it has all of its updates; equations 16 and 17
are the objectives. Time is in slots of one second, at whose ends transfers are complete.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from sparkdl_comm.fabric.core.order import Job


def optimum(
    jobs: Sequence[Job], rates: Sequence[tuple[int, int]], server: int, aggregators: Sequence[int], *, mean: bool
) -> float:
    """The least mean end of updates, or the least end of all, seconds. ``rates``: of every host, out and in, bytes per
    second."""
    program = _Program(jobs, rates, server, aggregators)
    return program.solve(mean)


class _Program:
    def __init__(
        self, jobs: Sequence[Job], rates: Sequence[tuple[int, int]], server: int, aggregators: Sequence[int]
    ) -> None:
        self._jobs, self._rates, self._server, self._aggregators = jobs, rates, server, aggregators
        slowest = min(min(pair) for pair in rates)
        self._slots = sum(math.ceil(sum(job.sizes) / slowest) for job in jobs)
        self._most = max(max(pair) for pair in rates)
        self._names: dict[tuple[object, ...], int] = {}
        self._rows: list[tuple[dict[int, float], float, float]] = []
        self._binary: set[int] = set()

    def solve(self, mean: bool) -> float:
        updates, hops = range(len(self._jobs)), range(len(self._aggregators) + 1)  # the last hop is the server
        times = range(self._slots)
        server = hops[-1]
        hosts = [*self._aggregators, self._server]
        links: dict[tuple[int, int, int], dict[int, float]] = {}
        for update in updates:
            job = self._jobs[update]
            self._add({self._one("to", update, hop): 1.0 for hop in hops}, 1, 1)
            for time in times[1:]:
                self._falls(("open", update), time)
            for hop in hops:
                chosen, sent = self._one("to", update, hop), {}
                if job.host == hosts[hop]:
                    continue
                for time in times:
                    rate = self._real("rate", update, hop, time)
                    sent[rate] = 1.0
                    self._add({rate: 1.0, chosen: -self._most}, -math.inf, 0)
                    self._add({rate: 1.0, self._one("open", update, time): -self._most}, -math.inf, 0)
                    links.setdefault((job.host, 0, time), {})[rate] = 1.0
                    links.setdefault((hosts[hop], 1, time), {})[rate] = 1.0
                self._add({**sent, chosen: -float(job.sizes[0])}, 0, 0)
            self._ends_after(update, server, [self._one("open", update, time) for time in times])
        for hop, time in itertools.product(hops[:-1], times):
            if time:
                self._falls(("passing", hop), time)
            if hosts[hop] == self._server:
                continue
            rate = self._real("sum", hop, time)
            self._add({rate: 1.0, self._one("passing", hop, time): -self._most}, -math.inf, 0)
            links.setdefault((hosts[hop], 0, time), {})[rate] = 1.0
            links.setdefault((self._server, 1, time), {})[rate] = 1.0
            for update in updates:
                both = {self._one("to", update, hop): self._most, self._one("open", update, time): self._most}
                self._add({rate: 1.0, **both}, -math.inf, 2 * self._most)
        for hop, update in itertools.product(hops[:-1], updates):
            if hosts[hop] != self._server:
                size = float(self._jobs[update].sizes[0])
                sent = {self._real("sum", hop, time): 1.0 for time in times}
                self._add({**sent, self._one("to", update, hop): -size}, 0, math.inf)
            self._ends_after(update, hop, [self._one("passing", hop, time) for time in times])
            self._ends_after(update, hop, [self._one("open", update, time) for time in times])
        for (host, way, _), used in links.items():
            self._add(used, 0, self._rates[host][way])
        if mean:
            return self._least({self._real("end", update): 1 / len(self._jobs) for update in updates})
        for update in updates:
            self._add({self._real("last"): 1.0, self._real("end", update): -1.0}, 0, math.inf)
        return self._least({self._real("last"): 1.0})

    def _ends_after(self, update: int, hop: int, slots: Sequence[int]) -> None:
        """If the update takes this hop, it does not end before as many slots as are in use."""
        row = {self._real("end", update): 1.0, self._one("to", update, hop): -float(self._slots)}
        self._add({**row, **dict.fromkeys(slots, -1.0)}, -float(self._slots), math.inf)

    def _falls(self, name: tuple[object, ...], time: int) -> None:
        """Require that the 0-1 variable of ``name`` does not rise from one slot to the next."""
        self._add({self._one(*name, time): 1.0, self._one(*name, time - 1): -1.0}, -math.inf, 0)

    def _real(self, *name: object) -> int:
        return self._names.setdefault(name, len(self._names))

    def _one(self, *name: object) -> int:
        """A number that is 0 or 1."""
        index = self._real(*name)
        self._binary.add(index)
        return index

    def _add(self, row: dict[int, float], low: float, high: float) -> None:
        self._rows.append((row, low, high))

    def _least(self, objective: dict[int, float]) -> float:
        count = len(self._names)
        matrix = np.zeros((len(self._rows), count))
        for number, (row, _, _) in enumerate(self._rows):
            for index, factor in row.items():
                matrix[number, index] = factor
        whole = np.zeros(count)
        whole[list(self._binary)] = 1
        upper = np.where(whole, 1.0, np.inf)
        costs = np.zeros(count)
        costs[list(objective)] = list(objective.values())
        limits = LinearConstraint(matrix, [low for _, low, _ in self._rows], [high for _, _, high in self._rows])
        found = milp(costs, constraints=limits, integrality=whole, bounds=Bounds(0, upper))
        assert found.success, found.message
        return float(found.fun)
