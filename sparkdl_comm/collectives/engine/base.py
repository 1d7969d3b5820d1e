"""Interface of an engine, which runs plans. ``sockets.py`` and ``torch_p2p.py`` implement it.

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

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from sparkdl_comm.collectives.plan import Plan
from sparkdl_comm.errors import SparkdlCommError


class Work(Protocol):
    """Collective that one rank has started. Do not touch its tensor until the collective has ended."""

    @property
    def is_over(self) -> bool:
        """True if the collective has ended here, with or without an error."""

    @property
    def error(self) -> SparkdlCommError | None:
        """Reason why the collective failed; None if it succeeded or has not ended."""

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        """Wait until the collective is complete here and return the tensor.

        :param timeout: seconds; None to wait as long as the engine lets a collective make no progress.
        :raises DeadlineError: the collective is not complete by then.
        :raises SparkdlCommError: the collective failed.
        """

    def then(self, callback: Callable[[Work], object]) -> None:
        """Call ``callback`` once when the collective has ended, with or without an :attr:`error`.

        The engine's thread calls it, so it must be quick. If the collective has already ended, the calling thread calls
        it immediately. Only one callback is possible.
        """

    def cancel(self) -> None:
        """End the collective with :class:`GangError`, unless it has ended. Waiting threads learn of it immediately.

        Any thread may call it. Peers may have sent a part of the collective already, which cannot be taken back. So the
        whole engine ends, on this rank and, because its connections close, on the peers.
        """


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

    def start(self, prepared: P, tensor: torch.Tensor, op: str = "sum") -> Work:
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
