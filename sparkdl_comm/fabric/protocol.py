"""What daemons and the scheduler say to each other over the control NIC: JSON frames, each the fields of one of these
classes.

A daemon registers, then tells what it has (:class:`Ready`), what it wants (:class:`Wanted`), what came of transfers
(:class:`Ended`, :class:`Broken`), that it cannot go on (:class:`Failed`), and how fast its links are (:class:`Rates`). The
scheduler orders: :class:`Expect` at the receiver of a transfer, then :class:`Send` at its sender. No message has a time in
it, only seconds from when it comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sparkdl_comm.fabric.message import Kind

#: Service of rank 0 that daemons dial.
CONTROL = "fabric control"
#: Service of daemons, for updates and models.
DATA = "fabric data"
#: Address and port, one for each rail; the port as JSON has it.
RailAddresses: TypeAlias = list[tuple[str, int]]


@dataclass(frozen=True)
class Register:
    """``role``: of the core's nodes, or ``scheduler`` for a rank 0 that is nothing else. ``rails``: where data come in.
    ``limits``: what all must agree on. ``helpers``: how many nodes the rank has started beside itself; ``helps``: this is one
    of them. By a server or replica: ``elements`` and ``crc`` of its part of the model, and which part that is, ``shard``."""

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
    """A worker has an update. ``update``: its number among the worker's own. ``norm``: L2, NaN if an element is not
    finite."""

    update: int
    version: int
    norm: float


@dataclass(frozen=True)
class Wanted:
    """A worker wants the model."""


@dataclass(frozen=True)
class Reduce:
    """A worker has its part of the all-reduce with this ``number``, from 1; ``elements``: of the vector. All workers have
    the same numbers."""

    number: int
    elements: int
    norm: float


@dataclass(frozen=True)
class Ended:
    """A transfer has arrived, and was applied if this is a server or a replica, whose ``version`` that made."""

    transfer: int
    version: int = -1


@dataclass(frozen=True)
class Broken:
    """A transfer could not be sent; ``why`` is for people."""

    transfer: int
    why: str


@dataclass(frozen=True)
class Fenced:
    """The answer to the :class:`Fence` of this ``number``."""

    number: int


@dataclass(frozen=True)
class Failed:
    """The daemon cannot go on; ``why`` is for people. ``error``: a class of ``sparkdl_comm.errors``; ``rank``: whom it is
    about."""

    why: str
    error: str
    rank: int


@dataclass(frozen=True)
class Flow:
    """A transfer that the daemon sends. Since the last report: for how many ``seconds`` it was under way, how many bytes were
    ``sent``, and in which share of the time they were ``held`` up by the network. ``total``: bytes since it began. ``ago``:
    how many seconds before the report that was."""

    transfer: int
    seconds: float
    sent: int
    held: float
    total: int
    ago: float


@dataclass(frozen=True)
class Rates:
    """Since the last report, ``seconds`` before. ``up``, ``down``: bytes that left and reached the host over the rails,
    whosever. ``speed``: bytes per second of the rails' links, 0 if unknown."""

    seconds: float
    up: int
    down: int
    speed: float
    flows: list[Flow]


@dataclass(frozen=True)
class Leave:
    """The daemon ends on purpose."""


@dataclass(frozen=True)
class Welcome:
    """All are there. Of each server: its rank, and how many ``elements`` its part of the model has."""

    servers: list[int]
    elements: list[int]


@dataclass(frozen=True)
class Expect:
    """To the receiver of a transfer. ``elements``: float32 numbers. ``content``: a :class:`~sparkdl_comm.fabric.message.Kind`.
    ``uses``: how many transfers it will send of it. Of updates: ``count``; ``turn``, when a server applies them, -1 elsewhere;
    ``staleness``, the least of (base version - place in the sum). Of a model: from element ``offset`` on; all transfers of a
    ``batch`` make one model. Of a server's state: the ``turn`` with which its replica goes on. ``course``: 0 for the servers'
    model, else the number of the all-reduce.
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
    """To the sender of a transfer: as soon as it has what it is made of, to the ``rails``, paced by ``slices`` (start, stop,
    bytes per second), which count from now; none: as fast as it goes. Sent are ``elements`` from ``offset`` on of the sum of
    the transfers ``of``, at an aggregator; of the worker's own ``update``, multiplied by ``scale``; of the server's model,
    one snapshot for each ``batch``; or a server's state before its ``turn``. The rest as in :class:`Expect`.
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
    """To the sender of a transfer: other slices, from now on, for what is left of it."""

    transfer: int
    slices: list[tuple[float, float, float]]


@dataclass(frozen=True)
class Reorder:
    """To a server: it applies the transfer at this turn instead; if it has applied it already, this turn is nobody's."""

    transfer: int
    turn: int


@dataclass(frozen=True)
class Regroup:
    """To the aggregator that sends it: fewer updates are in the transfer. Comes before the others are cancelled."""

    transfer: int
    count: int
    staleness: int


@dataclass(frozen=True)
class Cancel:
    """To both ends: the transfer does not take place."""

    transfer: int


@dataclass(frozen=True)
class Fence:
    """Who sends these transfers is ``lost``, which says it for people: of those that have not ended, none is to end any more.
    The answer is :class:`Fenced`, which comes after :class:`Ended` of those that have."""

    number: int
    transfers: list[int]
    lost: str


@dataclass(frozen=True)
class Skip:
    """To a server or replica: this turn is nobody's. ``count``: of the updates that were to be applied then, if another
    server has them in its part of the model: the version counts them. ``course``: as in :class:`Expect`."""

    turn: int
    course: int = 0
    count: int = 0


@dataclass(frozen=True)
class Outcome:
    """To a worker: its update is in the model of this ``version``; or, if that is -1, it was dropped, ``why`` says."""

    update: int
    version: int = -1
    why: str = ""
    course: int = 0


@dataclass(frozen=True)
class Release:
    """To a worker: nobody needs the update any more."""

    update: int
    course: int = 0


@dataclass(frozen=True)
class Reduced:
    """To the worker that was the root: all have what they wanted of the all-reduce with this ``number``."""

    number: int


@dataclass(frozen=True)
class End:
    """The daemon's work is done; or, if there is a reason, it is not taken in."""

    why: str = ""


Message: TypeAlias = (
    Register | Ready | Wanted | Reduce | Ended | Broken | Fenced | Failed | Rates | Leave
    | Welcome | Expect | Send | Repace | Reorder | Regroup | Cancel | Fence | Skip | Outcome | Release | Reduced | End
)  # fmt: skip

#: A transfer's number, as daemons know it, is that of its course, and in so many bits the core's own.
_COURSE_BITS = 40


def transfer_number(course: int, number: int) -> int:
    """By which daemons know the transfer that has this number in the core of a course."""
    return course << _COURSE_BITS | number


def course_of(transfer: int) -> tuple[int, int]:
    """The course of a transfer that a daemon names, and its number there."""
    return transfer >> _COURSE_BITS, transfer & ((1 << _COURSE_BITS) - 1)
