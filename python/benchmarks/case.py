"""Networks whose computing is emulated, on links of some rate."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.profile import Profile

_BITS = 8 * 4  # of a parameter


@dataclass(frozen=True)
class Case:
    """A network on the lab. `profile`: None if it really computes; `rate`: bit/s of a link; `delay`: seconds that the lab adds
    to a communication's start-up."""

    name: str
    profile: Profile | None
    world: int
    rate: float
    delay: float = 0.0

    @property
    def about(self) -> dict[str, float]:
        """Of an emulated network: its `parameters`, and `scale`, their share of the real one's; `pull_seconds`, in which all
        parameters reach a rank, and likewise all gradients their servers; `forward_seconds`; `bound_seconds`, the theory
        value."""
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


def case_of(name: str, profile: Profile | None, world: int, rate: str, delay: float = 0.0) -> Case:
    """`rate`: Mbit/s, or "auto:R": at which pulling takes R times as long as forward.

    :raises ConfError: it is neither, or the network really computes and the rate is "auto".
    """
    kind, _, ratio = rate.partition(":")
    if kind != "auto":
        return Case(name, profile, world, number("--rate", rate) * 1e6, delay)
    if profile is None:
        raise ConfError(f"--rate {rate}: {name} computes as fast as it can; give Mbit/s")
    wanted = number("--rate", ratio) if ratio else 1.0
    at_1_bit = Case(name, profile, world, 1.0, delay).about
    return Case(name, profile, world, at_1_bit["pull_seconds"] / at_1_bit["forward_seconds"] / wanted, delay)


def share_of(name: str, forward: float, slowdown: float) -> Profile:
    """The profile of that name on a device that computes `slowdown` times slower; and of each layer a share, parameters and
    times alike, so that forward takes `forward` seconds."""
    full = Profile.load(name)
    share = forward / slowdown / sum(layer.forward for layer in full.layers)
    return full.scaled(share, share * slowdown)


def number(option: str, text: str) -> float:
    """:raises ConfError: it is none."""
    try:
        return float(text)
    except ValueError:
        raise ConfError(f"{option} {text}: must be numbers") from None
