"""The scheduler's decisions. Each one concerns the nodes it names. The decision of a transfer goes to both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparkdl_comm.fabric.core.nodes import Node


class Piece(NamedTuple):
    """Part of a transfer's schedule: ``rate`` bytes per second from ``start`` to ``end``, seconds on the scheduler's
    clock."""

    start: float
    end: float
    rate: float


Schedule = tuple[Piece, ...]

#: Why an update is dropped. ``deadline``: its deadline has passed or cannot be kept without leaving the server idle.
#: ``norm``: its norm is negative or not finite. ``divergence``: it exceeds the divergence bound on its own. ``lost``:
#: the servers were lost.
Reason = Literal["deadline", "norm", "divergence", "lost"]


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Bytes sent from one node to another.

    - ``id``: unique number within the job.
    - ``bytes``: size.
    - ``after``: transfers that must have ended before this one starts. Examples: the updates that an aggregator sums,
      or a transfer to the replica that a server's transfer waits for.
    - ``schedule``: pieces to send, empty if both nodes are on one host. If a transfer in ``after`` ends later than
      planned, the rates stay and the times shift.
    """

    id: int
    source: Node
    target: Node
    bytes: int
    after: tuple[int, ...]
    schedule: Schedule

    @property
    def end(self) -> float:
        """Planned end in seconds; minus infinity without a schedule."""
        return self.schedule[-1].end if self.schedule else float("-inf")


@dataclass(frozen=True, kw_only=True)
class Push(Transfer):
    """Update, or an aggregator's sum of several, on its way to a server or replica.

    - ``updates``: ids, in order.
    - ``scales``: step size of each update. The node that sends the update *itself* multiplies by it; an aggregator
      only adds.
    - ``shard``: index of the server whose component is sent, or None for all components, to an aggregator.
    - ``turn``: position in the order in which servers and replicas apply transfers, or None to an aggregator. Turns
      count from 0 without gaps, except those named by a :class:`SkippedTurn`. A turn is one optimizer step and raises
      the version by ``len(updates)``.
    """

    updates: tuple[int, ...]
    scales: tuple[float, ...]
    shard: int | None
    turn: int | None


@dataclass(frozen=True, kw_only=True)
class ModelTransfer(Transfer):
    """The model, or the component of server ``shard``, sent to a worker or distributor.

    - ``workers``: workers that get it: the target itself, or the ones to which the target forwards it by further
      transfers.
    - ``shard``: index of the server, or None for all components.
    - ``batch``: number shared by transfers of one version. Each server's version is fixed when it starts its first
      transfer of the batch.
    """

    workers: tuple[int, ...]
    shard: int | None
    batch: int


@dataclass(frozen=True, kw_only=True)
class StateCopy(Transfer):
    """The whole state of server ``shard``, parameters and momentum, sent to its replica after a loss left them with
    different updates.

    - ``bytes``: estimate.
    - ``turn``: the state is the one after all turns before this.
    - ``resume``: the replica's own turn with which it goes on. It applies nothing before the copy arrives. If the
      copy is cancelled it goes on at once.
    """

    shard: int
    turn: int
    resume: int


@dataclass(frozen=True)
class NewSchedule:
    """New schedule from now on for a transfer under way, because bandwidth has changed."""

    transfer: int
    schedule: Schedule


@dataclass(frozen=True)
class NewTurn:
    """Later turn for a transfer to a server that would delay the ones behind it.

    A :class:`SkippedTurn` names its old turn. If the transfer was applied meanwhile, the server skips the new turn.
    """

    transfer: int
    turn: int


@dataclass(frozen=True)
class SmallerSum:
    """A sum reduced to ``updates``, because the other updates' worker was lost. The aggregator leaves them out."""

    transfer: int
    updates: tuple[int, ...]


@dataclass(frozen=True)
class Cancellation:
    """Transfer that is abandoned because one of its nodes was lost. The receiver discards what has arrived and is not
    applied yet."""

    transfer: int


@dataclass(frozen=True)
class SkippedTurn:
    """Turn that ``target`` does not wait for.

    ``count``: updates of the turn that another server has applied. They raise this server's version too, so that all
    parts of one model keep the same version.
    """

    target: Node
    turn: int
    count: int = 0


@dataclass(frozen=True)
class DroppedUpdate:
    """Update that its worker discards."""

    update: int
    worker: int
    reason: Reason


@dataclass(frozen=True)
class ReleasedUpdate:
    """Update that its worker may forget, because it has reached every node that needs it."""

    update: int
    worker: int


Decision = (
    Push
    | ModelTransfer
    | StateCopy
    | NewSchedule
    | NewTurn
    | SmallerSum
    | Cancellation
    | SkippedTurn
    | DroppedUpdate
    | ReleasedUpdate
)
