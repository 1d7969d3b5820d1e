"""Strategies by name. A strategy's file, and all that it needs, is imported when a run names it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.groups import CompressionConf
from sparkdl_comm.conf.strategy import AUTO, CHEAPEST, FABRIC, HITOPK, SERVER
from sparkdl_comm.errors import ConfError, nearest
from sparkdl_comm.strategies.base import Strategy


@dataclass(frozen=True)
class StrategyEntry:
    """Strategy that a run can name. ``path``: where :func:`load_class` finds it. ``description``: one line for users."""

    path: str
    description: str


_COLLECTIVE = StrategyEntry(
    "strategies.collective:CollectiveAllReduce", "All-reduce of buckets by this collective, during backward."
)

#: Strategies by name. For collectives, ``collective.loop`` and ``collective.batching`` may select another class.
STRATEGIES: dict[str, StrategyEntry] = {
    AUTO: StrategyEntry(
        "autotune.auto_strategy:AutoStrategy", "Predicts all strategies, tries the best, and stays with the fastest."
    ),
    SERVER: StrategyEntry(
        "strategies.ps.parameter_server:ParameterServer", "Sharded parameter server in the executors' JVMs (iBatch)."
    ),
    **dict.fromkeys(ALGORITHMS, _COLLECTIVE),
    CHEAPEST: StrategyEntry(
        _COLLECTIVE.path, "All-reduce of each bucket by the collective that is predicted to be fastest."
    ),
    HITOPK: StrategyEntry(
        "strategies.hitopk:HierarchicalTopK", "The largest elements of the gradients, by hierarchical top-k (CommLib)."
    ),
    FABRIC: StrategyEntry(
        "strategies.fabric:FabricWorker", "Asynchronous updates, scheduled by the network's state (MLfabric)."
    ),
    "gloo": StrategyEntry(
        "strategies.all_reduce:Gloo", "One all-reduce of the whole gradient by torch.distributed, on CPUs."
    ),
    "nccl": StrategyEntry(
        "strategies.all_reduce:Nccl", "One all-reduce of the whole gradient by torch.distributed, on GPUs."
    ),
}

#: Path of the class for each value of ``collective.loop``.
_LOOPS = {
    "all-reduce": _COLLECTIVE.path,
    "decoupled": "strategies.overlapped:DecoupledAllReduce",
    "root": "strategies.overlapped:RootUpdate",
    "root-overlap": "strategies.overlapped:RootUpdate",
}


def load_class(path: str) -> Any:
    """Return the class at ``path``, ``room.file:class``."""
    module, _, name = path.partition(":")
    return getattr(import_module(f"sparkdl_comm.{module}"), name)


def load_strategy(conf: CommConf) -> type[Strategy]:
    """Return the class of ``conf.strategy``, which must be a registered name. Check no other setting."""
    name = conf.strategy
    has_loops = name in ALGORITHMS or name in (CHEAPEST, AUTO)
    if has_loops and conf.collective.batching != "fixed":
        return cast("type[Strategy]", load_class("autotune.auto_strategy:PlannedBuckets"))
    if not has_loops or (name == AUTO and conf.collective.loop == "all-reduce"):
        return cast("type[Strategy]", load_class(STRATEGIES[name].path))
    # Only the all-reduce loop runs trials. For other loops of auto the cost model alone chooses.
    kind = load_class(_LOOPS[conf.collective.loop])
    return type(f"{kind.__name__}_{name}", (kind,), {"algorithm": name if name in ALGORITHMS else CHEAPEST})


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
    if conf.compression.method is not None and conf.compression.method.rank:
        for name in ("values", "momentum", "feedback"):
            if getattr(conf.compression, name) != getattr(CompressionConf, name):
                raise ConfError(
                    f"{PREFIX}compression.{name} is not for powersgd, which has its own. Remove one of them."
                )
        if conf.compression.schedule.warmup:
            raise ConfError(
                f"{PREFIX}compression.schedule={conf.compression.schedule}: powersgd has no density to warm up. Remove one."
            )
    if conf.compression.momentum and not conf.compression.feedback:
        raise ConfError(
            f"{PREFIX}compression.momentum={conf.compression.momentum:g} is the momentum of the residuals, which"
            f" {PREFIX}compression.feedback=false discards. Set only one of them."
        )
    strategy = load_strategy(conf)
    if conf.compression.method is not None and not strategy.can_compress:
        gathering = [name for name, algorithm in ALGORITHMS.items() if "all_gather" in algorithm.operations]
        raise ConfError(
            f"{PREFIX}compression={conf.compression.method}: strategy {conf.strategy} with"
            f" collective.loop={conf.collective.loop} sends whole gradients. Compressed gradients travel by"
            f" {', '.join([SERVER, *gathering, CHEAPEST, AUTO, HITOPK])} with collective.loop=all-reduce."
        )
    return strategy
