"""Control messages between daemons and the scheduler. Each is a JSON frame with the fields of one of these classes.

A daemon registers first. It then reports updates (:class:`Ready`), requests (:class:`Wanted`), the outcome of transfers
(:class:`Ended`, :class:`Broken`), its own failure (:class:`Failed`) and traffic (:class:`Rates`). The scheduler orders
a transfer with :class:`Expect` to its receiver, then :class:`Send` to its sender. Messages carry no absolute times,
only seconds from their arrival.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: Service of rank 0 that daemons connect to.
CONTROL_SERVICE = "fabric control"
#: Service of daemons that carries updates and models.
DATA_SERVICE = "fabric data"
#: Address and port for each rail; the port as an integer of JSON.
RailAddresses: TypeAlias = list[tuple[str, int]]
#: Bits of the core's transfer number. In the number that daemons see, the course's number stands above them.
_NUMBER_BITS = 40


class Kind(enum.IntEnum):
    """Content of a transfer."""

    UPDATE = 1
    MODEL = 2
    STATE = 3  # a server's parameters, then its last step if there is momentum


@dataclass(frozen=True)
class Register:
    """First message of a daemon.

    - ``role``: role of the node, or ``scheduler`` for a rank 0 that does nothing else.
    - ``rails``: addresses at which the node receives data.
    - ``limits``: the parameters that must be equal on all ranks.
    - ``helpers``: how many node processes the rank has started.
    - ``helps``: the node is such a process.
    - ``elements``, ``crc``, ``shard``: of a server or replica, length and CRC-32 of its shard of the model, and the
      shard's number.
    """

    role: str
    rank: int
    host: str
    rails: RailAddresses
    limits: dict[str, Any]
    helpers: int = 0
    helps: bool = False
    elements: int = 0
    crc: int = 0
    shard: int = 0


@dataclass(frozen=True)
class Ready:
    """Report of a worker that it has an update.

    - ``update``: the worker's own number for it.
    - ``version``: the model version that it was computed from.
    - ``norm``: its L2 norm; NaN if an element is not finite.
    """

    update: int
    version: int
    norm: float


@dataclass(frozen=True)
class Wanted:
    """Request of a worker for the model."""


@dataclass(frozen=True)
class Reduce:
    """Report of a worker that its vector for an all-reduce is ready.

    - ``number``: of the all-reduce, counted from 1, equal on all workers.
    - ``elements``: length of the vector.
    - ``norm``: L2 norm of the vector.
    """

    number: int
    elements: int
    norm: float


@dataclass(frozen=True)
class Ended:
    """Report that a transfer has arrived. A server or replica has also applied it; ``version`` is its model version
    then."""

    transfer: int
    version: int = -1


@dataclass(frozen=True)
class Broken:
    """Report that a transfer could not be sent. ``why`` is for people."""

    transfer: int
    why: str


@dataclass(frozen=True)
class Fenced:
    """Answer to the :class:`Fence` of this ``number``."""

    number: int


@dataclass(frozen=True)
class Failed:
    """Report that the daemon cannot continue.

    - ``why``: the reason, for people.
    - ``error``: name of a class of ``sparkdl_comm.errors``.
    - ``rank``: the rank that the error is about.
    """

    why: str
    error: str
    rank: int


@dataclass(frozen=True)
class Flow:
    """Progress of one transfer, reported by its sender.

    - ``seconds``: time since the last report during which the transfer was active.
    - ``sent``: bytes in that time.
    - ``held``: fraction of that time in which the network delayed bytes.
    - ``total``: bytes since the transfer began.
    - ``ago``: age of these values at the time of the report, in seconds.
    """

    transfer: int
    seconds: float
    sent: int
    held: float
    total: int
    ago: float


@dataclass(frozen=True)
class Rates:
    """Traffic of a host since the last report.

    - ``seconds``: time since the last report.
    - ``up``, ``down``: bytes that the host sent and received over the rails, in all processes.
    - ``speed``: bytes per second of the rails' links; 0 if unknown.
    """

    seconds: float
    up: int
    down: int
    speed: float
    flows: list[Flow]


@dataclass(frozen=True)
class Leave:
    """Announcement that the daemon ends on purpose."""


@dataclass(frozen=True)
class Welcome:
    """Announcement that all nodes have registered. For each server: its rank, and the ``elements`` of its shard."""

    servers: list[int]
    elements: list[int]


@dataclass(frozen=True)
class Expect:
    """Announcement of a transfer to its receiver.

    - ``elements``: number of float32 elements.
    - ``uses``: how many transfers the receiver will make from it.
    - ``turn``: when a server or replica applies updates, -1 at other nodes; for a server's state, the turn with which
      its replica continues.
    - ``count``: updates in the transfer.
    - ``staleness``: minimum of base version minus place in the sum.
    - ``content``: a :class:`Kind`.
    - ``offset``: of a model, the first element.
    - ``batch``: all model transfers of one batch form one model.
    - ``course``: 0 for the servers' model, else the number of the all-reduce.
    """

    transfer: int
    elements: int
    uses: int = 0
    turn: int = -1
    count: int = 0
    staleness: int = 0
    content: int = Kind.UPDATE
    offset: int = 0
    batch: int = 0
    course: int = 0


@dataclass(frozen=True)
class Send:
    """Order to the sender of a transfer. It sends as soon as its data are complete.

    - ``rails``: addresses of the receiver.
    - ``slices``: pacing as (start, stop, bytes per second), counted from now. Without slices it sends at full speed.
    - ``elements``, ``offset``: the range of elements to send.
    - ``of``: at an aggregator, the transfers whose sum or model it sends.
    - ``next_hop``: the rank to which the receiver forwards the data, or -1.
    - ``update``, ``scale``: at a worker, its own update's number, and the factor that it applies.
    - ``norm``: L2 norm of the update, or an upper bound for a sum.
    - ``batch``: at a server, one snapshot of the model for each batch.
    - ``turn``: for a server's state, the turn before which it is copied.

    The other fields are those of :class:`Expect`.
    """

    transfer: int
    elements: int
    rails: RailAddresses
    slices: list[tuple[float, float, float]]
    of: list[int] = field(default_factory=list)
    next_hop: int = -1
    update: int = -1
    offset: int = 0
    scale: float = 1.0
    count: int = 0
    staleness: int = 0
    norm: float = 0.0
    content: int = Kind.UPDATE
    batch: int = 0
    turn: int = -1
    course: int = 0


@dataclass(frozen=True)
class Repace:
    """Order to the sender of a transfer: send the rest by these slices, counted from now."""

    transfer: int
    slices: list[tuple[float, float, float]]


@dataclass(frozen=True)
class Reorder:
    """Order to a server: apply the transfer at this turn instead. If it was applied already, skip this turn."""

    transfer: int
    turn: int


@dataclass(frozen=True)
class Regroup:
    """Order to an aggregator: the sum it sends contains fewer updates. Arrives before the other updates are cancelled."""

    transfer: int
    count: int
    staleness: int


@dataclass(frozen=True)
class Cancel:
    """Announcement to both ends that the transfer does not take place."""

    transfer: int


@dataclass(frozen=True)
class Fence:
    """Announcement that the sender of these transfers is lost. The unfinished ones must never end.

    The answer is :class:`Fenced`. It follows the :class:`Ended` of the transfers that have ended. ``lost``: the lost
    node, for people.
    """

    number: int
    transfers: list[int]
    lost: str


@dataclass(frozen=True)
class Skip:
    """Order to a server or replica to skip this turn.

    - ``count``: updates of this turn that another server has applied to its shard. The version still counts them.
    - ``course``: as in :class:`Expect`.
    """

    turn: int
    course: int = 0
    count: int = 0


@dataclass(frozen=True)
class Outcome:
    """Report to a worker of what became of its update.

    - ``version``: the model version that contains the update; -1 if it was dropped.
    - ``why``: the reason for dropping it.
    """

    update: int
    version: int = -1
    why: str = ""
    course: int = 0


@dataclass(frozen=True)
class Release:
    """Announcement to a worker that nobody needs the update any more."""

    update: int
    course: int = 0


@dataclass(frozen=True)
class Reduced:
    """Announcement to the root of an all-reduce that all workers have the sum."""

    number: int


@dataclass(frozen=True)
class End:
    """Announcement that the job has ended. With a reason ``why``, the daemon is refused or the job has failed."""

    why: str = ""


Message: TypeAlias = (
    Register | Ready | Wanted | Reduce | Ended | Broken | Fenced | Failed | Rates | Leave
    | Welcome | Expect | Send | Repace | Reorder | Regroup | Cancel | Fence | Skip | Outcome | Release | Reduced | End
)  # fmt: skip


def pack_transfer_number(course: int, number: int) -> int:
    """Return the daemons' number of the transfer that has this number in the core of a course."""
    return course << _NUMBER_BITS | number


def unpack_transfer_number(transfer: int) -> tuple[int, int]:
    """Return the course of a transfer that a daemon names, and its number there."""
    return transfer >> _NUMBER_BITS, transfer & ((1 << _NUMBER_BITS) - 1)
