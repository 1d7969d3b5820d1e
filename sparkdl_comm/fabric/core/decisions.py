"""What the scheduler says is to be done. Each decision concerns the nodes that it names; both ends of a transfer are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparkdl_comm.fabric.core.roles import Node


class Piece(NamedTuple):
    """A part of a transfer's schedule: ``rate`` bytes per second from ``start`` to ``end``, seconds on the scheduler's
    clock."""

    start: float
    end: float
    rate: float


Schedule = tuple[Piece, ...]

#: Why an update is dropped: its deadline has passed, or cannot be kept without leaving the server idle; its norm is not a
#: finite number that is at least 0; alone it would exceed the divergence bound; the servers were lost.
Reason = Literal["deadline", "norm", "divergence", "lost"]


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Bytes from one node to another.

    ``id``: unique in the job. ``bytes``: how many. ``after``: transfers that must have ended before this one starts, such as
    those that an aggregator sums, or one to the replica that a server's waits for. ``schedule``: when to send how fast;
    empty if both nodes are on one host. Once what ``after`` names has ended later than planned, the rates are to be kept, not
    the times.
    """

    id: int
    source: Node
    target: Node
    bytes: int
    after: tuple[int, ...]
    schedule: Schedule

    @property
    def end(self) -> float:
        """When it is to be complete, seconds; minus infinity if nothing has to be sent."""
        return self.schedule[-1].end if self.schedule else float("-inf")


@dataclass(frozen=True, kw_only=True)
class Push(Transfer):
    """One update, or an aggregator's sum of several, on its way to a server or replica.

    ``updates``: their ids, in their order. ``scales``: the step size of each, by which whoever sends the update *itself*
    multiplies it; an aggregator adds what it gets. ``shard``: the server's number whose component it is; None: all
    components, to an aggregator. ``turn``: servers and replicas apply transfers in the order of their turns, from 0 without
    gaps but for those that a :class:`Skipped` names; each of them is one step of the optimizer, and raises the version by
    ``len(updates)``. None: to an aggregator.
    """

    updates: tuple[int, ...]
    scales: tuple[float, ...]
    shard: int | None
    turn: int | None


@dataclass(frozen=True, kw_only=True)
class Model(Transfer):
    """The model, or the component of server ``shard``, for ``workers``: the target, or whom it passes the model on to by
    further transfers. ``shard`` is None if all components are sent. ``batch``: all transfers of one batch bring one
    version, which is that of each server when it starts to send the first."""

    workers: tuple[int, ...]
    shard: int | None
    batch: int


@dataclass(frozen=True, kw_only=True)
class Copy(Transfer):
    """Server ``shard`` sends its whole state, parameters and momentum, to its replica, after a lost node has left the two
    with different updates. It is the state after all turns before ``turn``; ``bytes`` is an estimate. The replica applies
    nothing before it has it, and goes on with turn ``resume`` of its own; at once, if the copy is cancelled."""

    shard: int
    turn: int
    resume: int


@dataclass(frozen=True)
class Repaced:
    """A transfer that is under way has a new schedule from now on, as the bandwidth has changed."""

    transfer: int
    schedule: Schedule


@dataclass(frozen=True)
class Reordered:
    """A transfer to a server gets a later turn, as it would hold up what comes after it. Its old turn is skipped, which a
    :class:`Skipped` says too; the new one is, if the transfer was applied meanwhile."""

    transfer: int
    turn: int


@dataclass(frozen=True)
class Regrouped:
    """A transfer carries only ``updates`` any more, as the others' worker was lost: its aggregator leaves them out."""

    transfer: int
    updates: tuple[int, ...]


@dataclass(frozen=True)
class Cancelled:
    """A transfer does not take place, or is broken off, as one of its nodes was lost. What has arrived of it and was not
    applied yet is thrown away."""

    transfer: int


@dataclass(frozen=True)
class Skipped:
    """``target`` does not wait for this turn. ``count``: the updates in it, if another server has applied them: the version
    rises by these all the same, so that the parts of one model keep the same version."""

    target: Node
    turn: int
    count: int = 0


@dataclass(frozen=True)
class Dropped:
    """The worker throws its update away."""

    update: int
    worker: int
    reason: Reason


@dataclass(frozen=True)
class Released:
    """The worker may forget the update: it was sent to all who need it."""

    update: int
    worker: int


Decision = Push | Model | Copy | Repaced | Reordered | Regrouped | Cancelled | Skipped | Dropped | Released
