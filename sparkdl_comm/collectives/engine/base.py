"""What an engine is: it runs plans. The interface that ``sockets.py`` and ``torch_p2p.py`` meet.

The order of the calls, on every rank::

    for each plan, once:
        prepare             all ranks prepare the same plans, in the same order
    for each collective:
        start               all ranks start the same collectives, in the same order
            wait, or then   of the Work that start returned
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
    """One collective that one rank has started. Its tensor must not be touched until the collective has ended."""

    @property
    def is_over(self) -> bool:
        """Whether the collective has ended here, well or not."""

    @property
    def error(self) -> SparkdlCommError | None:
        """Why the collective failed; None if it did not, or has not ended."""

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        """The tensor, when the collective is complete here.

        :param timeout: seconds; None: as long as the engine allows a collective to stand still.
        :raises DeadlineError: the collective is not complete by then.
        :raises SparkdlCommError: why it failed.
        """

    def then(self, callback: Callable[[Work], object]) -> None:
        """Has ``callback`` called once when the collective has ended, well or not (:attr:`error`). The engine's thread calls
        it, so it must be quick; if the collective has ended already, this thread does, at once. For one callback."""

    def cancel(self) -> None:
        """Ends the collective with :class:`GangError`, unless it has ended. From any thread; who waits for it hears at once.

        Peers may have sent a part of it already, and nobody can take that back, so all of the engine ends with it, on this
        rank and, as its connections close, on the peers."""


class Prepared(Protocol):
    """A plan, ready to be run any number of times by one rank."""

    @property
    def plan(self) -> Plan: ...


P = TypeVar("P", bound=Prepared)


class Engine(Protocol[P]):
    """One rank's engine, for tensors on :attr:`device`; ``P`` is what it makes of a plan."""

    @property
    def device(self) -> torch.device: ...

    def prepare(self, plan: Plan) -> P:
        """Works out what :meth:`start` needs, and connects to the plan's peers.

        :raises SparkdlCommError: a peer cannot be reached.
        """

    def start(self, prepared: P, tensor: torch.Tensor, op: str = "sum") -> Work:
        """Begins a collective on ``tensor``, in place.

        :param tensor: of as many elements as the plan has, contiguous, any shape, on :attr:`device`.
        :param op: sum, mean, min or max.
        :raises InputError: a tensor that is not so; an unknown op.
        :raises SparkdlCommError: the engine has failed or was closed.
        """

    def abort(self, error: SparkdlCommError) -> None:
        """Collectives under way, and those to come, fail with ``error``, if nothing else failed before."""

    def close(self) -> None:
        """Ends whatever is under way, and gives everything back. May be repeated."""
