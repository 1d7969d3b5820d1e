"""Hosts' compute times and link rates over time. They are drawn from a seed, so they are equal for every system.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl_comm.errors import InputError

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
