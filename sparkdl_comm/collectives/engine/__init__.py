"""Interface of an engine, which runs plans. ``collectives/group.py`` picks one of the two engines.

- ``sockets.py`` uses authenticated TCP connections, one per peer and rail (``peer_sockets.py``, ``connection.py``), for
  CPU tensors. Ranks of one host read each other's memory (``peer_memory.py``).
- ``torch_p2p.py`` uses torch.distributed's sends and receives, with NCCL for CUDA.
- ``job.py`` is one collective under way, and its memory.

The order of the calls, on every rank::

    for each plan, once:
        prepare             all ranks prepare the same plans, in the same order
    for each collective:
        start               all ranks start the same collectives, in the same order
            wait, or then   on the Work that start returned
    close

``abort`` may come from any thread at any time.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch

from sparkdl_comm.collectives.plan import Plan
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.errors import SparkdlCommError


class PreparedPlan(Protocol):
    """Plan that one rank can run any number of times."""

    @property
    def plan(self) -> Plan: ...


P = TypeVar("P", bound=PreparedPlan)


class Engine(Protocol[P]):
    """Engine of one rank, for tensors on :attr:`device`. ``P`` is the type of its prepared plans."""

    @property
    def device(self) -> torch.device: ...

    def prepare(self, plan: Plan) -> P:
        """Compute what :meth:`start` needs, and connect to the plan's peers.

        :raises SparkdlCommError: a peer cannot be reached.
        """

    def start(self, prepared: P, tensor: torch.Tensor, op: str = "sum") -> Work[torch.Tensor]:
        """Begin a collective on ``tensor``, in place.

        :param tensor: contiguous, on :attr:`device`, of any shape, with as many elements as the plan.
        :param op: sum, mean, min or max.
        :raises InputError: the tensor does not meet these conditions, or ``op`` is unknown.
        :raises SparkdlCommError: the engine has failed or is closed.
        """

    def abort(self, error: SparkdlCommError) -> None:
        """Fail all collectives under way, and all later ones, with ``error``, unless another failure came first."""

    def close(self) -> None:
        """End all collectives under way and release all resources. Repeated calls do no harm."""
