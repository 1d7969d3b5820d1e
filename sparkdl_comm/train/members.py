"""The members of a gang, and the one all-gather by which they learn of each other."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl_comm.errors import DeadlineError, GangError, InputError, ProtocolError
from sparkdl_comm.train.handshake import TIMEOUT_KEY

Exchange = Callable[[str], list[str]]


@dataclass(frozen=True)
class Rail:
    """A NIC for collectives: its address, its network (10.0.1.0/24), and the port on which the rank listens there."""

    address: str
    network: str
    port: int


@dataclass(frozen=True)
class Member:
    """What a rank told the others. `host`, `port`: where it listens. `nics`: NIC name -> address, of all that
    are up. `rails`: see `Rail`. `payload`: what its caller shares (row count, fingerprint, address of the JVM)."""

    rank: int
    host: str
    nics: dict[str, str]
    port: int
    rails: tuple[Rail, ...]
    payload: dict[str, Any]


def meet(me: Member, world: int, epoch: str, exchange: Exchange, seconds: float) -> tuple[Member, ...]:
    """All members, by rank, `exchange` called once for at most `seconds`.

    Raises InputError (the payload is no JSON), DeadlineError, GangError (ranks that do not make a gang of
    this epoch).
    """
    try:
        text = json.dumps({"epoch": epoch, **asdict(me)})
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(f"the gang's payload cannot be sent as JSON: {exc}") from exc
    texts = _within(exchange, text, seconds, f"not all of {world} ranks reached the barrier of gang epoch {epoch}")
    members: dict[int, Member] = {}
    try:
        for value in map(json.loads, texts):
            theirs = value.pop("epoch")
            member = Member(**{**value, "rails": tuple(Rail(**rail) for rail in value["rails"])})
            if theirs != epoch:
                raise GangError(f"rank {member.rank} is of gang epoch {theirs}, rank {me.rank} of {epoch}")
            members[member.rank] = member
    except (TypeError, KeyError, AttributeError, ValueError) as exc:
        raise ProtocolError(f"the exchange gave rank {me.rank} something that is no member: {exc!r}") from exc
    if len(texts) != world or sorted(members) != list(range(world)):
        raise GangError(f"a gang of {world} ranks got {len(texts)} answers, from ranks {sorted(members)}")
    return tuple(members[rank] for rank in range(world))


def _within(exchange: Exchange, text: str, seconds: float, late: str) -> list[str]:
    # Spark's allGather has no deadline of its own. The thread that is left behind then ends with its task.
    answer: queue.SimpleQueue[list[str] | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(exchange(text))
        except BaseException as exc:  # noqa: BLE001 - raised again, in the thread that asked
            answer.put(exc)

    threading.Thread(target=work, name="sparkdl-exchange", daemon=True).start()
    try:
        got = answer.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise DeadlineError(f"{late} within {seconds:g} s; set {TIMEOUT_KEY}", phase="join") from None
    if isinstance(got, BaseException):
        raise got
    return got
