"""Conditions of races and of simulated runs: link rates and computing times, drawn from a seed.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7:
stragglers C1 to C3, and NICs whose rates change every 5 s (N1 to N3). C0 and N0 are undisturbed.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from lab.emulated import STRAGGLERS, Pace, Stragglers
from lab.rates import DISTRIBUTIONS, LinkRate, RateSchedule

from sparkdl_comm.topology import Topology

COMPUTE = {"C0": Stragglers(0.0, 1.0), **STRAGGLERS}
#: Chance of each share of the full rate.
NETWORKS = {"N0": {1.0: 1.0}, **DISTRIBUTIONS}
#: Full rate of a simulated NIC in one direction, bytes per second: the paper's 10 Gbit/s.
FULL_RATE = 1.25e9


def setting_names(text: str) -> list[str]:
    """Parse an argument of settings: ``C1-N1,C2-N3``."""
    found = text.split(",")
    for setting in found:
        compute, _, network = setting.partition("-")
        if compute not in COMPUTE or network not in NETWORKS:
            raise ArgumentTypeError(f"{setting}: there are {', '.join(COMPUTE)} with {', '.join(NETWORKS)}")
    return found


@dataclass(frozen=True)
class Conditions:
    """Conditions of a simulated run on ``hosts`` hosts, for a compute and a network setting.

    :param steady: additional hosts whose links always have the full rate, such as the server's.
    :param interval: seconds after which rates are drawn again.
    :param computing: seconds of a worker's iteration without slowdown.
    """

    compute: str
    network: str
    hosts: int
    steady: int
    seed: int
    interval: float = 5.0
    computing: float = 0.1

    def rates(self, period: int) -> list[tuple[float, float]]:
        """Return the rates of every host in the ``period``-th interval, bytes per second out and in."""
        shares = NETWORKS[self.network]
        drawn = np.random.default_rng((self.seed, 1, period)).choice(
            list(shares), size=(self.hosts, 2), p=list(shares.values())
        )
        return [(out * FULL_RATE, into * FULL_RATE) for out, into in drawn.tolist() + [(1.0, 1.0)] * self.steady]

    def seconds(self, worker: int, iteration: int) -> float:
        """Return the seconds that this worker computes in an iteration."""
        stragglers = COMPUTE[self.compute]
        is_slow = np.random.default_rng((self.seed, 2, worker, iteration)).random() < stragglers.chance
        return self.computing * (stragglers.factor if is_slow else 1.0)


@dataclass(frozen=True)
class RaceConditions(Conditions):
    """Conditions of the race with this seed, for the simulator. Each worker has its own host."""

    _drawn: dict[int, tuple[torch.Generator, list[float]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def rates(self, period: int) -> list[tuple[float, float]]:
        topology = Topology.parse(f"star:{self.hosts + self.steady}").with_rates(round(8 * FULL_RATE))
        links = SteadyServer(NETWORKS[self.network], seed=self.seed, workers=self.hosts).draw(period, topology)
        return [(links[host.index, 0].up / 8, links[host.index, 0].down / 8) for host in topology.hosts]

    def seconds(self, worker: int, iteration: int) -> float:
        draws, factors = self._drawn.setdefault(worker, (generator(self.seed, worker), []))
        while len(factors) < iteration:
            factors.append(COMPUTE[self.compute].draw(draws))
        return self.computing * factors[iteration - 1]


@dataclass(frozen=True)
class SteadyServer(RateSchedule):
    """Schedule of rates in which all hosts after the first ``workers`` keep the full rate."""

    workers: int = 0

    def draw(self, step: int, topology: Topology) -> dict[tuple[int, int], LinkRate]:
        full = {
            (host.index, rail): LinkRate(rate, rate)
            for host in topology.hosts[self.workers :]
            for rail, rate in enumerate(topology.rates)
        }
        return super().draw(step, topology) | full


def generator(seed: int, worker: int) -> torch.Generator:
    """Return the generator of a worker's slowdowns in a race."""
    return torch.Generator().manual_seed(1000 * seed + worker)


class Computing:
    """Pace of a worker in a race: each step lasts ``seconds``, or longer for a straggler.

    The same seed and worker give the same slowdowns.
    """

    def __init__(
        self,
        seconds: float,
        compute: str,
        seed: int,
        worker: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds, self._stragglers = seconds, COMPUTE[compute]
        self._draw = generator(seed, worker)
        self._pace = Pace(clock, sleep)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the body, then wait until the step has lasted long enough."""
        self._pace.slowdown = self._stragglers.draw(self._draw)
        with self._pace.lasting(self._seconds):
            yield
