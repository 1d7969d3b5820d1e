"""Members of a gang, and the all-gather at the rendezvous by which they learn of each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl_comm.errors import GangError, InputError, ProtocolError

#: Rendezvous: takes this rank's text and returns the texts of all ranks, by rank. It has its own deadline.
Exchange = Callable[[str], list[str]]


@dataclass(frozen=True)
class Rail:
    """NIC for collectives: its address, its network (10.0.1.0/24), and the port on which the rank listens there."""

    address: str
    network: str
    port: int


@dataclass(frozen=True)
class Member:
    """Description that a rank sends to the others.

    :param host: address on which the rank listens.
    :param port: port on which the rank listens.
    :param nics: NIC name -> address, of all NICs that are up.
    :param rails: see ``Rail``.
    :param payload: data that the caller shares (row count, fingerprint, address of the JVM).
    """

    rank: int
    host: str
    nics: dict[str, str]
    port: int
    rails: tuple[Rail, ...]
    payload: dict[str, Any]


def gather_members(me: Member, world: int, attempt: str, exchange: Exchange) -> tuple[Member, ...]:
    """Return all members, by rank. Every rank passes itself to the one call of ``exchange``, and gets all members.

    :raises InputError: the payload is not JSON.
    :raises GangError: the ranks do not form a gang of this attempt.
    :raises ProtocolError: ``exchange`` returned something that is not a member.

    Errors of ``exchange`` are passed on.
    """
    try:
        text = json.dumps({"attempt": attempt, **asdict(me)})
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(f"the gang's payload cannot be sent as JSON: {exc}") from exc
    texts = exchange(text)
    members: dict[int, Member] = {}
    try:
        for value in map(json.loads, texts):
            peer_attempt = value.pop("attempt")
            member = Member(**{**value, "rails": tuple(Rail(**rail) for rail in value["rails"])})
            if peer_attempt != attempt:
                raise GangError(f"rank {member.rank} is of gang attempt {peer_attempt}, rank {me.rank} of {attempt}")
            members[member.rank] = member
    except (TypeError, KeyError, AttributeError, ValueError) as exc:
        raise ProtocolError(f"the exchange gave rank {me.rank} something that is no member: {exc!r}") from exc
    if len(texts) != world or sorted(members) != list(range(world)):
        raise GangError(f"a gang of {world} ranks got {len(texts)} answers, from ranks {sorted(members)}")
    return tuple(members[rank] for rank in range(world))


def format_ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
