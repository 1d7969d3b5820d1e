"""Rank 0's table behind the gang's store: keys, values, and threads that wait for keys."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import Any

from sparkdl_comm.errors import DeadlineError, GangError, InputError, ProtocolError, SparkdlCommError
from sparkdl_comm.train.handshake import TIMEOUT_KEY

#: Bytes of one value, and of all of them.
MAX_VALUE = 4 << 20
MAX_TOTAL = 256 << 20
#: Longest wait in seconds; also what torch's "no timeout" means here.
MAX_WAIT = 86400.0

Request = dict[str, Any]


class Table:
    """The keys and values. Methods take and give what travels: JSON, values as base64 text."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._values: dict[str, bytes] = {}
        self._total = 0
        self._changed = threading.Condition()
        self._over = ""

    def answer(self, request: Request) -> Request:
        """The reply to `request`; `{"error": class name, "message": ...}` if it fails."""
        try:
            keys = [str(key) for key in request.get("keys", ())]
            values = [base64.b64decode(value, validate=True) for value in request.get("values", ())]
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
        """Wake all who wait, and let nobody wait again."""
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()

    def _put(self, key: str, value: bytes) -> None:
        total = self._total + len(value) - len(self._values.get(key, b""))
        if len(value) > MAX_VALUE or total > MAX_TOTAL:
            raise InputError(
                f"store key {key[:200]}: {len(value)} bytes, {total} in all (max {MAX_VALUE}, {MAX_TOTAL})"
            )
        self._values[key] = value
        self._total = total
        self._changed.notify_all()

    def _set(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        for key, value in zip(keys, values, strict=True):
            self._put(key, value)
        return {}

    def _get(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        self._wait(keys, values, request)
        return {"values": [base64.b64encode(self._values[key]).decode() for key in keys]}

    def _wait(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        def ready() -> bool:
            return bool(self._over) or all(key in self._values for key in keys)

        seconds = float(request["seconds"])
        self._changed.wait_for(ready, min(max(seconds, 0.0), MAX_WAIT))
        missing = [key for key in keys if key not in self._values]
        if missing and self._over:
            raise GangError(self._over)
        if missing:
            names = ", ".join(key[:100] for key in missing[:3])
            raise DeadlineError(
                f"{len(missing)} of {len(keys)} store keys not set within {seconds:g} s (first: {names}), "
                f"in a gang of {self._world}; a rank is late, or set {TIMEOUT_KEY}"
            )
        return {}

    def _add(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        number = int(self._values.get(keys[0], b"0")) + int(request["amount"])
        self._put(keys[0], str(number).encode())  # as TCPStore stores it
        return {"number": number}

    def _append(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        self._put(keys[0], self._values.get(keys[0], b"") + values[0])
        return {}

    def _check(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        return {"yes": all(key in self._values for key in keys)}

    def _compare_set(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        expected, desired = values
        now = self._values.get(keys[0])
        # As TCPStore: an absent key equals an empty expectation, and is not made by any other.
        if now == expected or (now is None and not expected):
            self._put(keys[0], desired)
            now = desired
        return {"values": [base64.b64encode(expected if now is None else now).decode()]}

    def _delete(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        gone = self._values.pop(keys[0], None)
        self._total -= len(gone or b"")
        return {"yes": gone is not None}

    def _count(self, keys: list[str], values: list[bytes], request: Request) -> Request:
        return {"number": sum(key.startswith(keys[0]) for key in self._values)}

    _operations: dict[str, Callable[[Table, list[str], list[bytes], Request], Request]] = {
        "set": _set,
        "get": _get,
        "wait": _wait,
        "add": _add,
        "append": _append,
        "check": _check,
        "compare_set": _compare_set,
        "delete": _delete,
        "count": _count,
    }
