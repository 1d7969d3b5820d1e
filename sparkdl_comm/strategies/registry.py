"""Lookup of the strategy class that a run's settings name."""

from __future__ import annotations

import sparkdl_comm.strategies.all_reduce
import sparkdl_comm.strategies.chosen
import sparkdl_comm.strategies.fabric
import sparkdl_comm.strategies.hitopk
import sparkdl_comm.strategies.ps.parameter_server  # noqa: F401 - the modules register their strategies
from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.group import AUTO
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.errors import ConfError, nearest
from sparkdl_comm.strategies.base import STRATEGIES, Strategy, register
from sparkdl_comm.strategies.batched import Batched
from sparkdl_comm.strategies.candidates import CHEAPEST
from sparkdl_comm.strategies.chosen import Chosen
from sparkdl_comm.strategies.collective import CollectiveAllReduce, CollectiveStrategy
from sparkdl_comm.strategies.decoupled import CollectiveDecoupled
from sparkdl_comm.strategies.rooted import CollectiveAtRoot

#: Strategy class for each value of ``collective.loop``.
_LOOPS: dict[str, type[CollectiveStrategy]] = {
    "all-reduce": CollectiveAllReduce,
    "decoupled": CollectiveDecoupled,
    "root": CollectiveAtRoot,
    "root-overlap": CollectiveAtRoot,
}


@register(*ALGORITHMS, CHEAPEST)
def _by_loop(conf: CommConf) -> type[Strategy]:
    if conf.batching != "fixed":
        return Batched
    kind = _LOOPS[conf.loop]
    algorithm = AUTO if conf.strategy not in ALGORITHMS else conf.strategy
    return type(f"{kind.__name__}_{conf.strategy}", (kind,), {"algorithm": algorithm})


@register(AUTO)
def _chosen(conf: CommConf) -> type[Strategy]:
    """Return the class for ``auto``. Only the all-reduce loop runs trials; for others the cost model alone chooses."""
    if conf.loop != "all-reduce" or conf.batching != "fixed":
        return _by_loop(conf)
    return Chosen


def strategy_class(conf: CommConf) -> type[Strategy]:
    """Return the class of the strategy that the settings name.

    :raises ConfError: the name is unknown (the message lists the known ones), the strategy cannot send compressed gradients
        and compression is on, or settings of compression contradict each other.
    """
    if conf.strategy not in STRATEGIES:
        raise ConfError(
            f"strategy {conf.strategy!r} is unknown: there are {', '.join(STRATEGIES)} (spark.sparkdl.comm.strategy)"
            f"{nearest(conf.strategy, STRATEGIES)}"
        )
    if conf.compression is not None and conf.compression.rank:
        defaults = CommConf.from_mapping({})
        for name in ("values", "momentum", "feedback"):
            if getattr(conf, field := f"compression_{name}") != getattr(defaults, field):
                raise ConfError(
                    f"{PREFIX}compression.{name} is not for powersgd, which has its own. Remove one of them."
                )
        if conf.compression_schedule.warmup:
            raise ConfError(
                f"{PREFIX}compression.schedule={conf.compression_schedule}: powersgd has no density to warm up. Remove one."
            )
    if conf.compression_momentum and not conf.compression_feedback:
        raise ConfError(
            f"{PREFIX}compression.momentum={conf.compression_momentum:g} is the momentum of the residuals, which"
            f" {PREFIX}compression.feedback=false discards. Set only one of them."
        )
    made = STRATEGIES[conf.strategy](conf)
    if conf.compression is not None and not made.compresses:
        able = [a.name for a in ALGORITHMS.values() if "all_gather" in a.operations]
        raise ConfError(
            f"{PREFIX}compression={conf.compression}: strategy {conf.strategy} with collective.loop={conf.loop} sends"
            f" whole gradients. Compressed gradients travel by {', '.join(['ps', *able, CHEAPEST, AUTO, 'hitopk'])} with"
            " collective.loop=all-reduce."
        )
    return made
