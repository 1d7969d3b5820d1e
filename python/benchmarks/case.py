"""Cases of benchmarks: a network, real or emulated, on links of a rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.profile import Profile

#: Slowdown of the device of emulated networks: that of the profiles does 1e12 operations a second.
SLOWDOWN = 60.0
_BITS = 8 * 4  # bits of a parameter


@dataclass(frozen=True)
class Case:
    """A network on the lab.

    :param profile: profile of an emulated network. None: the network computes.
    :param rate: bit/s of a link.
    :param delay: seconds that the lab adds to each start-up.
    """

    name: str
    profile: Profile | None
    world: int
    rate: float
    delay: float = 0.0

    @property
    def about(self) -> dict[str, float]:
        """Facts about an emulated network; empty for a real one.

        `parameters`: their number. `scale`: the share of the real network's. `pull_seconds`: least time in which all
        parameters reach a rank, and as long for its gradients. `forward_seconds`: time of forward. `bound_seconds`:
        theory of an iteration.
        """
        if self.profile is None:
            return {}
        first, last = self.profile.layers[0], self.profile.layers[-1]
        pull = self._transfer(self.profile.parameters)
        computing = self.profile.seconds + 2 * (self.delay + self._transfer(first.parameters))
        return {
            "parameters": self.profile.parameters,
            "scale": self.profile.parameters / Profile.load(self.name).parameters,
            "pull_seconds": pull,
            "forward_seconds": sum(layer.forward for layer in self.profile.layers),
            "bound_seconds": max(computing, 2 * (pull + self.delay) + last.forward + last.backward),
        }

    def _transfer(self, parameters: int) -> float:
        return parameters * _BITS * (self.world - 1) / self.world / self.rate


def case_of(name: str, forward: float | None, world: int, rate: str, delay: float = 0.0) -> Case:
    """Return the case of a network.

    :param forward: seconds of forward of an emulated network. None: the network computes.
    :param rate: Mbit/s, or "auto:R", by which a pull takes R times as long as forward.
    :raises ConfError: the rate is neither, or it is "auto" and the network is not emulated.
    """
    profile = None if forward is None else share_of(name, forward)
    kind, _, ratio = rate.partition(":")
    if kind != "auto":
        return Case(name, profile, world, number("--rate", rate) * 1e6, delay)
    if profile is None:
        raise ConfError(f"--rate {rate}: {name} is not emulated, so the time of forward is not known. Give Mbit/s.")
    wanted = number("--rate", ratio) if ratio else 1.0
    at_1_bit = Case(name, profile, world, 1.0, delay).about
    return Case(name, profile, world, at_1_bit["pull_seconds"] / at_1_bit["forward_seconds"] / wanted, delay)


def share_of(name: str, forward: float, slowdown: float = SLOWDOWN) -> Profile:
    """Return a profile on a device that is `slowdown` times slower, with the same share of each layer.

    The share is that by which forward takes `forward` seconds. It applies to parameters and times.
    """
    full = Profile.load(name)
    share = forward / slowdown / sum(layer.forward for layer in full.layers)
    return full.scaled(share, share * slowdown)


def shrunk(name: str, divisor: int) -> Profile:
    """Return a profile with the same share of the parameters and of the seconds of each layer."""
    return Profile.load(name).scaled(1 / divisor, 1 / divisor)


def passes(profile: Profile) -> tuple[float, float]:
    """Return the seconds of forward and of backward."""
    forward, backward = (math.fsum(getattr(layer, way) for layer in profile.layers) for way in ("forward", "backward"))
    return forward, backward


def number(option: str, text: str) -> float:
    """Parse the value of an option.

    :raises ConfError: the text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise ConfError(f"{option} {text}: must be a number") from None
