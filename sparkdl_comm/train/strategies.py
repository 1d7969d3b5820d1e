"""The strategies there are, by the names that users choose from."""

from __future__ import annotations

from sparkdl_comm.errors import ConfError
from sparkdl_comm.train import collective
from sparkdl_comm.train.allreduce import Gloo, Nccl
from sparkdl_comm.train.parameter_server import ParameterServer
from sparkdl_comm.train.strategy import Strategy

STRATEGIES: dict[str, type[Strategy]] = {
    "ps": ParameterServer,
    **collective.strategies(),
    "gloo": Gloo,
    "nccl": Nccl,
}


def strategy_class(name: str) -> type[Strategy]:
    """The strategy called `name`. Raises ConfError that lists those there are."""
    if name not in STRATEGIES:
        raise ConfError(
            f"strategy {name!r} is unknown: there are {', '.join(STRATEGIES)} (spark.sparkdl.comm.strategy)"
        )
    return STRATEGIES[name]
