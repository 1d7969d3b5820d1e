"""The strategies there are, by the names that users choose from."""

from __future__ import annotations

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.group import AUTO
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.train.allreduce import Gloo, Nccl
from sparkdl_comm.train.collective import CollectiveAllReduce
from sparkdl_comm.train.parameter_server import ParameterServer
from sparkdl_comm.train.rooted import CollectiveAtRoot
from sparkdl_comm.train.strategy import Strategy

STRATEGIES = ("ps", *ALGORITHMS, AUTO, "gloo", "nccl")

_OTHERS: dict[str, type[Strategy]] = {"ps": ParameterServer, "gloo": Gloo, "nccl": Nccl}


def strategy_class(conf: CommConf) -> type[Strategy]:
    """The strategy that the settings name. Raises ConfError that lists those there are."""
    name = conf.strategy
    if name not in STRATEGIES:
        raise ConfError(
            f"strategy {name!r} is unknown: there are {', '.join(STRATEGIES)} (spark.sparkdl.comm.strategy)"
        )
    if name in _OTHERS:
        return _OTHERS[name]
    kind = CollectiveAllReduce if conf.loop == "all-reduce" else CollectiveAtRoot
    return type(f"{kind.__name__}_{name}", (kind,), {"algorithm": name})
