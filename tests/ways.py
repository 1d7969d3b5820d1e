"""Ways to train: every strategy of the registry, with each loop and each compression that its check accepts.

Tests of what all strategies promise run over these, so a new entry of the registry is tested without being added to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.compression import COMPRESSIONS
from sparkdl_comm.conf.strategy import OTHER_LOOPS
from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies.all_reduce import AllReduce
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import STRATEGIES, strategy_class

LOOPS = ("all-reduce", *OTHER_LOOPS)

#: Compressions that send every element.
LOSSLESS = tuple(f"{operator}:1" for operator in COMPRESSIONS)


@dataclass(frozen=True)
class Way:
    """Strategy with its settings. ``settings``: values by key, without the prefix of the keys."""

    name: str
    settings: dict[str, str]

    @property
    def conf(self) -> CommConf:
        return CommConf.from_mapping({PREFIX + key: value for key, value in self.settings.items()})

    @property
    def strategy(self) -> type[Strategy]:
        return strategy_class(self.conf)

    @property
    def runs_in_threads(self) -> bool:
        """True if ranks may be threads: they need no plugin, no process of their own and no torch.distributed."""
        kind = self.strategy
        return kind.is_synchronous and not kind.needs_plugin and not issubclass(kind, AllReduce)

    @property
    def is_lossless(self) -> bool:
        """True if the sums of gradients are those of torch, but for rounding."""
        compression = self.conf.compression.method or getattr(self.strategy(self.conf), "compression", None)
        return compression is None or str(compression) in LOSSLESS


def ways(world: int) -> Iterator[Way]:
    """Yield every way that ``world`` ranks accept. All have a topology."""
    for name in STRATEGIES:
        usual = ""
        for loop in LOOPS:
            way = _accepted(f"{name} {loop}", world, {"strategy": name, "collective.loop": loop})
            if way is None or way.strategy.__name__ == usual:  # strategies without loops ignore the key
                continue
            usual = usual or way.strategy.__name__
            yield way
            if way.strategy.can_compress:
                for compression in (*LOSSLESS, "powersgd:2"):
                    compressed = _accepted(
                        f"{name} {loop} {compression}", world, {**way.settings, "compression": compression}
                    )
                    if compressed is not None:
                        yield compressed


def one_of_each_kind(several: Iterable[Way]) -> list[Way]:
    """Return the first way of each file, loop and kind of compression: the others differ in their algorithm alone."""
    first: dict[tuple[object, ...], Way] = {}
    for way in several:
        file = next(kind.__module__ for kind in way.strategy.__mro__ if kind.__module__.startswith("sparkdl_comm."))
        kind = (file, way.settings["collective.loop"], "compression" in way.settings, way.is_lossless)
        first.setdefault(kind, way)
    return list(first.values())


def _accepted(name: str, world: int, settings: dict[str, str]) -> Way | None:
    for topology in (f"star:{world}", f"hosts:1x{world}"):
        way = Way(name, {**settings, "topology": topology})
        try:
            way.strategy.check(way.conf, world)
        except ConfError:
            continue
        return way
    return None
