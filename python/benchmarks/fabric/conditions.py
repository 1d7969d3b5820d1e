"""What races draw: the rates of links, and how long workers compute. The simulator can take the same draws, so that a race is
predicted under its own conditions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from benchmarks.fabric.simulation.run import RATES, Conditions
from lab.emulated import STRAGGLERS, Pace, Stragglers
from lab.rates import DISTRIBUTIONS, LinkRate, RateSchedule

from sparkdl_comm.topology import Topology

#: C0 is without stragglers.
SETTINGS = {"C0": Stragglers(0.0, 1.0), **STRAGGLERS}


def generator(seed: int, worker: int) -> torch.Generator:
    """Of what is drawn for a worker's steps."""
    return torch.Generator().manual_seed(1000 * seed + worker)


class Computing:
    """What is really computed is a part of ``seconds``, if it does not take longer. ``setting``: of SETTINGS, drawn for each
    step; the same seed and worker give the same draws."""

    def __init__(
        self,
        seconds: float,
        setting: str,
        seed: int,
        worker: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds, self._stragglers = seconds, SETTINGS[setting]
        self._draw = generator(seed, worker)
        self._pace = Pace(clock, sleep)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The body is a step's computing."""
        self._pace.slowdown = self._stragglers.draw(self._draw)
        with self._pace.lasting(self._seconds):
            yield


@dataclass(frozen=True)
class SteadyServer(RateSchedule):
    """The links of hosts after those of the ``workers`` keep the full rate."""

    workers: int = 0

    def draw(self, step: int, topology: Topology) -> dict[tuple[int, int], LinkRate]:
        full = {
            (host.index, rail): LinkRate(rate, rate)
            for host in topology.hosts[self.workers :]
            for rail, rate in enumerate(topology.rates)
        }
        return super().draw(step, topology) | full


@dataclass(frozen=True)
class RaceConditions(Conditions):
    """Those of the race with this seed, for the simulator. Each worker has a host."""

    _drawn: dict[int, tuple[torch.Generator, list[float]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def rates(self, period: int) -> list[tuple[float, float]]:
        if self.network not in DISTRIBUTIONS:
            return super().rates(period)
        topology = Topology.parse(f"star:{self.hosts + self.steady}").with_rates(round(8 * RATES[-1]))
        links = SteadyServer(DISTRIBUTIONS[self.network], seed=self.seed, workers=self.hosts).draw(period, topology)
        return [(links[host.index, 0].up / 8, links[host.index, 0].down / 8) for host in topology.hosts]

    def seconds(self, worker: int, iteration: int) -> float:
        draws, factors = self._drawn.setdefault(worker, (generator(self.seed, worker), []))
        while len(factors) < iteration:
            factors.append(SETTINGS[self.compute].draw(draws))
        return self.computing * factors[iteration - 1]
