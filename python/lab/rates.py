"""Rates that change while programs run: every few seconds each direction of each NIC draws one. Pure.

The distributions are those of the MLfabric paper, section 7, as shares of the nominal rate (its 10 Gbit/s).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

_SHARES = (0.1, 0.25, 0.33, 0.5, 1.0)
#: Chance of each share, by name.
DISTRIBUTIONS = {
    "N1": dict(zip(_SHARES, (0.0, 0.0, 0.0, 0.1, 0.9), strict=True)),
    "N2": dict(zip(_SHARES, (0.0, 0.1, 0.1, 0.1, 0.7), strict=True)),
    "N3": dict(zip(_SHARES, (0.5, 0.0, 0.0, 0.0, 0.5), strict=True)),
}


@dataclass(frozen=True)
class LinkRate:
    """Rate of a host's link, bit/s: ``up`` from the host to the switch, ``down`` from the switch to the host."""

    up: int
    down: int


@dataclass(frozen=True)
class RateSchedule:
    """Schedule that redraws rates every ``period`` seconds.

    ``shares`` maps a share of the nominal rate to its chance. The same ``seed`` gives the same rates at any timing.
    """

    shares: dict[float, float]
    period: float = 5.0
    seed: int = 0

    @classmethod
    def named(cls, name: str, period: float = 5.0, seed: int = 0) -> RateSchedule:
        """Return the paper's schedule N1, N2 or N3."""
        if name not in DISTRIBUTIONS:
            raise ConfError(f"rate schedule {name!r}: there are {', '.join(DISTRIBUTIONS)}")
        return cls(DISTRIBUTIONS[name], period, seed)

    def __post_init__(self) -> None:
        if not self.period > 0:
            raise ConfError(f"period={self.period}: must be more than 0 seconds")
        chances = self.shares.values()
        if not self.shares or min(self.shares) <= 0 or min(chances) < 0 or abs(sum(chances) - 1) > 1e-9:
            raise ConfError(f"shares={self.shares}: shares must be more than 0, and their chances must sum up to 1")

    def draw(self, step: int, topology: Topology) -> dict[tuple[int, int], LinkRate]:
        """Return the rates of all links, by host and rail, from ``step`` times the period on."""
        generator = random.Random(f"{self.seed} {step}")
        shares, chances = list(self.shares), list(self.shares.values())

        def rate(rail: int) -> int:
            return round(generator.choices(shares, chances)[0] * topology.rates[rail])

        links = [(host.index, rail) for host in topology.hosts for rail in range(topology.rails)]
        return {link: LinkRate(rate(link[1]), rate(link[1])) for link in links}
