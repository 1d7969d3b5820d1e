"""Strategies as benchmarks are asked for them, and whether the settings that they are can be: before a network is made."""

from __future__ import annotations

from collections.abc import Mapping

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import NamedStrategy
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.topology import Topology


def check(settings: Mapping[str, str], world: int) -> None:
    """:raises ConfError: settings of spark.sparkdl.comm that no fit of so many ranks can have."""
    conf = CommConf.from_mapping({PREFIX + name: value for name, value in settings.items()})
    strategy_class(conf).check(conf, world)


def fits(way: str, topology: Topology) -> bool:
    """Whether it can run there; those that are no algorithm of collectives can everywhere."""
    strategy = NamedStrategy.parse(way).strategy
    return strategy not in ALGORITHMS or not ALGORITHMS[strategy].why_ineligible(topology)
