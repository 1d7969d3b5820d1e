"""The training loop that a strategy needs."""

from __future__ import annotations

from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.train.loop.asynchronous_loop import AsynchronousLoop
from sparkdl_comm.train.loop.training_loop import TrainingLoop


def loop_for(strategy: Strategy) -> type[TrainingLoop]:
    """Return the class of the loop that trains with ``strategy``."""
    return AsynchronousLoop if isinstance(strategy, Asynchronous) else TrainingLoop
