"""Inputs and outputs of the scheduler: nodes and their hosts, events, decisions.

Times of events are seconds on the caller's clock and are passed with the event, so hosts' clocks do not matter. Each
decision concerns the nodes it names. The decision of a transfer goes to both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparkdl_comm.errors import ConfError

Role = Literal["worker", "server", "aggregator", "replica"]
#: Why an update is dropped. ``deadline``: its deadline has passed or cannot be kept without leaving the server idle.
#: ``norm``: its norm is negative or not finite. ``divergence``: it exceeds the divergence bound on its own. ``lost``:
#: the servers were lost.
Reason = Literal["deadline", "norm", "divergence", "lost"]


@dataclass(frozen=True, slots=True)
class Node:
    """Process of a job: its role, and its index among the nodes of that role."""

    role: Role
    index: int


@dataclass(frozen=True)
class Roles:
    """Host of every node, as numbers from 0. Nodes of one host reach each other without a link.

    - ``servers``: more than one if the model is sharded.
    - ``replicas``: replica of each server, or none.
    - ``aggregators``: aggregators of the servers. They also distribute models.
    - ``replica_aggregators``: aggregators of the replicas. Their indices continue those of ``aggregators``.

    :raises ConfError: no worker, no server, or a number of replicas that is neither 0 nor the number of servers.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    aggregators: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    replica_aggregators: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise ConfError(
                f"fabric needs at least one worker and one server, not {len(self.workers)} and {len(self.servers)}"
            )
        if len(self.replicas) not in (0, len(self.servers)):
            raise ConfError(f"{len(self.replicas)} replicas of {len(self.servers)} servers: one per server, or none")

    @property
    def hosts(self) -> int:
        """Number of hosts: the highest host number plus 1."""
        return 1 + max(*self.workers, *self.servers, *self.aggregators, *self.replicas, *self.replica_aggregators)

    def host(self, node: Node) -> int:
        """Return the host of ``node``."""
        return {
            "worker": self.workers,
            "server": self.servers,
            "aggregator": self.aggregators + self.replica_aggregators,
            "replica": self.replicas,
        }[node.role][node.index]


@dataclass(frozen=True)
class Update:
    """``push``: a worker has an update ready.

    The worker keeps it until the scheduler has dropped it, or it has reached the server and any replica.

    - ``id``: unique number within the job.
    - ``sizes``: bytes of the component for each server.
    - ``base``: version of the model from which the update was computed, counted in updates.
    - ``norm``: L2 norm over all components, before multiplying by the step size.
    """

    id: int
    worker: int
    sizes: tuple[int, ...]
    base: int
    norm: float

    @property
    def bytes(self) -> int:
        """Total bytes of all components."""
        return sum(self.sizes)


@dataclass(frozen=True)
class ModelRequested:
    """``get``: a worker wants the model. ``sizes``: bytes of the model at each server."""

    worker: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class BandwidthReported:
    """Bandwidth of a host's NIC for this job, its own transfers included: bytes per second ``up`` (out) and ``down``
    (in)."""

    host: int
    up: float
    down: float


@dataclass(frozen=True)
class TransferProgressed:
    """Bytes of a transfer sent so far. Optional: without it, a transfer is assumed to keep its schedule."""

    transfer: int
    sent: int


@dataclass(frozen=True)
class TransferEnded:
    """A transfer has arrived completely. A server or replica has also applied it."""

    transfer: int


@dataclass(frozen=True)
class NodeLost:
    """A node has failed.

    The loss of one server makes all replicas replace all servers. ``versions``: the replicas' versions at that
    moment, as the replicas report them.
    """

    node: Node
    versions: tuple[int, ...] = ()


Event = Update | ModelRequested | BandwidthReported | TransferProgressed | TransferEnded | NodeLost


class Piece(NamedTuple):
    """Part of a transfer's schedule: ``rate`` bytes per second from ``start`` to ``end``, seconds on the scheduler's
    clock, or at a sender from the arrival of the schedule."""

    start: float
    end: float
    rate: float


Schedule = tuple[Piece, ...]


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
    after: tuple[int, ...] = ()
    schedule: Schedule

    @property
    def end(self) -> float:
        """Planned end in seconds; minus infinity without a schedule."""
        return self.schedule[-1].end if self.schedule else float("-inf")


@dataclass(frozen=True, kw_only=True)
class Push(Transfer):
    """Update, or an aggregator's sum of several, on its way to a server or replica.

    - ``updates``: ids, in order.
    - ``scales``: step size of each update. The update's worker multiplies the update by it before sending. An
      aggregator only adds.
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

    - ``workers``: workers that get the model: the target, or the workers to which a distributor forwards it by further
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
    Push | ModelTransfer | StateCopy | NewSchedule | NewTurn | SmallerSum | Cancellation | SkippedTurn
    | DroppedUpdate | ReleasedUpdate
)  # fmt: skip
