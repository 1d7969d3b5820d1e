"""What a rank says when it fails, small enough to travel: over the gang's connections, and inside the text of
the exception that a Spark task raises (Spark passes on nothing but text)."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl_comm.errors import (
    BY_NAME,
    BridgeError,
    DeadlineError,
    ProtocolError,
    RankFailedError,
    RankLostError,
    SparkdlCommError,
)
from sparkdl_comm.gang.torch_errors import peer_failed
from sparkdl_comm.gang.user_traceback import user_traceback

#: Upper bound of ``Failure.to_json()``, in bytes.
MAX_JSON = 64 * 1024
MARKER = "SPARKDL-FAILURE "

# Bytes of JSON for each text, quotes not counted; their sum and the rest of the object stay below MAX_JSON.
_BUDGET = {"error": 256, "phase": 128, "message": 12 * 1024, "traceback": 30 * 1024, "log": 20 * 1024}
_MAX_INT = 2**31 - 1


def _width(char: str) -> int:
    """Bytes that ``char`` takes in ASCII JSON."""
    if char in '"\\\n\r\t\b\f':
        return 2
    if " " <= char <= "~":
        return 1
    return 6 if ord(char) < 0x10000 else 12


def _take(text: str, budget: int) -> int:
    """How many leading characters of ``text`` fit into ``budget`` bytes of JSON."""
    for count, char in enumerate(text):
        budget -= _width(char)
        if budget < 0:
            return count
    return len(text)


def _clip(text: str, budget: int) -> str:
    """``text``, its middle cut out if it takes more than ``budget`` bytes of JSON: the ends say most."""
    # A lone surrogate cannot be encoded, so nobody could print what we pass on.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if _take(text, budget) == len(text):
        return text
    half = (budget - 48) // 2
    head = _take(text[:half], half)
    tail = _take(text[: -half - 1 : -1], half)
    return f"{text[:head]}\n[... {len(text) - head - tail} characters cut ...]\n{text[len(text) - tail :]}"


def is_secondary(exc: BaseException) -> bool:
    """True if ``exc`` (or what caused it) says "I failed because of someone else": a vanished peer, a time
    limit."""
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, (RankFailedError, RankLostError, BridgeError, DeadlineError)):
            return True
        if isinstance(cause, SparkdlCommError) and cause.remote_traceback is not None:
            return True
        if isinstance(cause, (ConnectionError, TimeoutError)):
            return True
        if peer_failed(cause):
            return True
        cause = cause.__cause__
    return False


def _is_plain(exc: BaseException) -> bool:
    """Whether its message says all: one of our own checks, with nothing behind it but a system call that failed."""
    ours = isinstance(exc, SparkdlCommError) and exc.explains_itself
    return ours and (exc.__cause__ is None or isinstance(exc.__cause__, OSError))


@dataclass(frozen=True)
class Failure:
    """One rank's failure. Texts are cut in the middle, at construction, so that its JSON is never over 64
    KiB.

    rank: the rank it is about (not always the one that reports it). step: of training, None before it.
    error: the class, by its bare name for ours and the builtin ones, else ``module.Class``.
    secondary: the reporter thinks that some other rank's failure caused this one.
    log: the last lines that the rank printed.
    """

    rank: int
    step: int | None
    phase: str
    error: str
    message: str
    traceback: str
    secondary: bool = False
    log: str = ""

    def __post_init__(self) -> None:
        for name, budget in _BUDGET.items():
            object.__setattr__(self, name, _clip(getattr(self, name), budget))

    @classmethod
    def of(
        cls,
        exc: BaseException,
        rank: int,
        step: int | None = None,
        phase: str = "",
        secondary: bool | None = None,
    ) -> Failure:
        """The failure that ``exc`` means. An exception that came from another rank (see ``to_exception``) keeps
        that rank, step, phase and traceback. ``secondary`` None: ``is_secondary(exc)`` decides."""
        kind, traceback, log = type(exc), None, ""
        error = kind.__qualname__
        if BY_NAME.get(error) is not kind and kind.__module__ != "builtins":
            error = f"{kind.__module__}.{error}"
        try:
            message = str(exc)
        except Exception as broken:  # noqa: BLE001 - a user's class may have any __str__; it must not hide this
            message = f"<no message: {type(broken).__name__} in __str__>"
        if isinstance(exc, SparkdlCommError):
            message, traceback, log = exc.message, exc.remote_traceback, exc.log_tail
            rank = rank if exc.rank is None else exc.rank
            step = step if exc.step is None else exc.step
            phase = exc.phase or phase
        if isinstance(exc, RankFailedError):
            error, message = exc.error, exc.error_message
        if traceback is None and _is_plain(exc):
            traceback = ""
        if traceback is None:
            traceback = user_traceback(exc)
        return cls(
            rank,
            step,
            phase,
            error,
            message,
            traceback,
            is_secondary(exc) if secondary is None else secondary,
            log,
        )

    def to_json(self) -> str:
        """ASCII JSON on one line, at most 64 KiB."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        """Inverse of ``to_json``.

        :raises ProtocolError: ``text`` is not just that.
        """
        if len(text) > MAX_JSON:
            raise ProtocolError(f"a failure of {len(text)} bytes: more than {MAX_JSON}")
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as exc:
            raise ProtocolError(f"not a failure: {exc}") from exc

    @classmethod
    def from_dict(cls, value: Any) -> Failure:
        """From the dict that ``dataclasses.asdict`` makes.

        :raises ProtocolError: a name, type or length is wrong.
        """
        if not isinstance(value, dict) or set(value) != set(cls.__dataclass_fields__):
            raise ProtocolError("not a failure: wrong fields")
        for name, limit in _BUDGET.items():
            if not isinstance(value[name], str) or len(value[name]) > limit:
                raise ProtocolError(f"not a failure: {name} is no string of at most {limit} characters")
        for name in ("rank", "step"):
            number = value[name]
            if name == "step" and number is None:
                continue
            if type(number) is not int or not 0 <= number <= _MAX_INT:
                raise ProtocolError(f"not a failure: {name} is {number!r:.40}")
        if not isinstance(value["secondary"], bool):
            raise ProtocolError("not a failure: secondary is no boolean")
        return cls(**value)

    def embed(self) -> str:
        """One line of ASCII to put into an exception's message, for ``find``."""
        return MARKER + self.to_json()

    @staticmethod
    def find(text: str) -> Failure | None:
        """The failure embedded in ``text``: of several the first that is not secondary, else the first. None
        without.

        Spark nests exceptions, repeats their texts and appends stack traces; what is cut or garbled is
        skipped.
        """
        first = None
        decoder = json.JSONDecoder()
        for match in re.finditer(re.escape(MARKER) + r"(?=\{)", text):
            try:
                value, _ = decoder.raw_decode(text[match.end() : match.end() + MAX_JSON])
                failure = Failure.from_dict(value)
            except (ValueError, RecursionError, ProtocolError):
                continue
            if not failure.secondary:
                return failure
            first = first or failure
        return first

    def to_exception(self) -> SparkdlCommError:
        """Our own typed errors as their own class, anything else as RankFailedError; with the remote
        traceback."""
        kind = BY_NAME.get(self.error)
        if kind is None:
            return RankFailedError(
                rank=self.rank,
                step=self.step,
                phase=self.phase,
                error=self.error,
                error_message=self.message,
                remote_traceback=self.traceback,
                log_tail=self.log,
            )
        return kind(
            self.message,
            rank=self.rank,
            step=self.step,
            phase=self.phase,
            remote_traceback=self.traceback,
            log_tail=self.log,
        )
