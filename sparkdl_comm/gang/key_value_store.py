"""In-memory key-value store at rank 0, behind the gang's torch.distributed stores, with blocking waits for keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkdl_comm.errors import DeadlineError, GangError, InputError, ProtocolError, SparkdlCommError
from sparkdl_comm.gang.frames import TIMEOUT_KEY

#: Maximum bytes of one value.
MAX_VALUE = 4 << 20
#: Maximum bytes of all values together.
MAX_TOTAL = 256 << 20
#: Longest wait in seconds. torch's "no timeout" means this.
MAX_WAIT = 86400.0

#: A request or a reply: JSON, except for ``values``, a list of bytes.
Request = dict[str, Any]


@dataclass
class _Gathering:
    """Values that the ranks have given so far, by rank.

    ``complete`` is notified when all ranks, or all but one, have given a value. ``readers``: number of ranks that got the
    result.
    """

    complete: threading.Condition
    given: dict[int, bytes] = field(default_factory=dict)
    readers: int = 0


class KeyValueStore:
    """Keys and values of all ranks. Thread-safe: each request is answered in the thread of its connection, where it may
    wait.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._values: dict[str, bytes] = {}
        self._total = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._gatherings: dict[str, _Gathering] = {}
        self._end_reason = ""

    def answer(self, request: Request) -> Request:
        """Return the reply to ``request``; ``{"error": class name, "message": ...}`` if it fails."""
        try:
            keys = [str(key) for key in request.get("keys", ())]
            values = list(request.get("values", ()))
            operation = self._operations.get(str(request.get("op")))
            if operation is None:
                raise ProtocolError(f"the store has no operation {request.get('op')!r:.40}")
            with self._changed:
                return operation(self, keys, values, request)
        except SparkdlCommError as exc:
            return {"error": type(exc).__name__, "message": exc.message}
        except (ValueError, TypeError, LookupError) as exc:
            return {"error": "ProtocolError", "message": f"malformed store request: {exc}"}

    def end(self, why: str) -> None:
        """Wake all waiting threads, and let no thread wait again."""
        with self._changed:
            self._end_reason = self._end_reason or why
            self._changed.notify_all()
            for gathering in self._gatherings.values():
                gathering.complete.notify_all()

    def _put(self, key: str, value: bytes) -> None:
        self._account(key, value, self._values.get(key, b""))
        self._values[key] = value
        self._changed.notify_all()

    def _account(self, key: str, value: bytes, old: bytes) -> None:
        total = self._total + len(value) - len(old)
        if len(value) > MAX_VALUE or total > MAX_TOTAL:
            raise InputError(
                f"store key {key[:200]}: {len(value)} bytes, {total} in all (max {MAX_VALUE}, {MAX_TOTAL})"
            )
        self._total = total

    def _set(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        for key, value in zip(keys, values, strict=True):
            self._put(key, value)
        return {}

    def _get(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        self._wait(keys, values, request)
        found = [self._values[key] for key in keys]
        if sum(map(len, found)) > MAX_TOTAL:
            raise InputError(f"{len(keys)} store keys of {sum(map(len, found))} bytes: at most {MAX_TOTAL} at once")
        return {"values": found}

    def _wait(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        def ready() -> bool:
            return bool(self._end_reason) or all(key in self._values for key in keys)

        seconds = _seconds(request)
        self._changed.wait_for(ready, seconds)
        missing = [key for key in keys if key not in self._values]
        if missing and self._end_reason:
            raise GangError(self._end_reason)
        if missing:
            names = ", ".join(key[:100] for key in missing[:3])
            raise DeadlineError(
                f"{len(missing)} of {len(keys)} store keys not set within {seconds:g} s (first: {names}), "
                f"in a gang of {self._world}; a rank is late, or set {TIMEOUT_KEY}"
            )
        return {}

    def _add(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        number = int(self._values.get(keys[0], b"0")) + int(request["amount"])
        self._put(keys[0], str(number).encode())  # same format as in TCPStore
        return {"number": number}

    def _append(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        self._put(keys[0], self._values.get(keys[0], b"") + values[0])
        return {}

    def _check(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        return {"yes": all(key in self._values for key in keys)}

    def _compare_set(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        expected, desired = values
        now = self._values.get(keys[0])
        # Like TCPStore: a missing key equals an empty expectation, and any other expectation does not create it.
        if now == expected or (now is None and not expected):
            self._put(keys[0], desired)
            now = desired
        return {"values": [expected if now is None else now]}

    def _delete(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        removed = self._values.pop(keys[0], None)
        self._total -= len(removed or b"")
        return {"yes": removed is not None}

    def _count(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        return {"number": sum(key.startswith(keys[0]) for key in self._values)}

    def _gather(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        """Take one value from every rank, and return the values of all, by rank. The values are deleted when all ranks
        have them.
        """
        (key,), (value,), rank = keys, values, int(request["rank"])
        gathering = self._gatherings.get(key) or _Gathering(threading.Condition(self._lock))
        given = gathering.given
        if not 0 <= rank < self._world or rank in given:
            raise ProtocolError(f"store key {key[:200]}: rank {rank} is invalid, or has given a value already")
        self._account(key, value, b"")
        self._gatherings[key] = gathering
        given[rank] = value
        if len(given) >= self._world - 1:  # all ranks, or all but one that waits for the other ranks' values first
            gathering.complete.notify_all()
        self._wait_for_ranks(gathering, _seconds(request))
        gathering.readers += 1
        if gathering.readers == self._world:
            del self._gatherings[key]
            self._total -= sum(map(len, given.values()))
        return {"values": [given[other] for other in range(self._world)]}

    def _get_others(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        """Return the values of all other ranks, by rank. Those ranks wait until this rank has given its value, too."""
        (key,), rank = keys, int(request["rank"])
        gathering = self._gatherings.setdefault(key, _Gathering(threading.Condition(self._lock)))
        if rank in gathering.given:
            raise ProtocolError(f"store key {key[:200]}: rank {rank} has given a value already")
        self._wait_for_ranks(gathering, _seconds(request), excluded_rank=rank)
        return {"values": [gathering.given[other] for other in range(self._world) if other != rank]}

    def _wait_for_ranks(self, gathering: _Gathering, seconds: float, excluded_rank: int | None = None) -> None:
        """Wait until all ranks have given a value, or all but ``excluded_rank``."""
        count = self._world - (excluded_rank is not None)
        # One thread per rank evaluates the condition, so it must not iterate over all ranks.
        gathering.complete.wait_for(lambda: bool(self._end_reason) or len(gathering.given) >= count, seconds)
        if len(gathering.given) >= count:
            return
        if self._end_reason:
            raise GangError(self._end_reason)
        missing = [str(rank) for rank in range(self._world) if rank not in gathering.given and rank != excluded_rank]
        raise DeadlineError(
            f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)[:200]} of {self._world} gave nothing within"
            f" {seconds:g} s: late, or set {TIMEOUT_KEY}"
        )

    _operations: dict[str, Callable[[KeyValueStore, list[str], list[bytes], Request], Request]] = {
        "set": _set,
        "get": _get,
        "wait": _wait,
        "add": _add,
        "append": _append,
        "check": _check,
        "compare_set": _compare_set,
        "delete": _delete,
        "count": _count,
        "gather": _gather,
        "given by others": _get_others,
    }


def _seconds(request: Request) -> float:
    return min(max(float(request["seconds"]), 0.0), MAX_WAIT)
