"""Failure report of a rank, small enough to send over the gang's connections and inside the text of a Spark task's
exception.

Spark passes on nothing but the exception's text. Errors of gloo are plain RuntimeErrors that differ only in their text.
This module is the only one that looks at this text. A traceback is reduced to the frames of the user's own code.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

from torch.distributed import DistNetworkError

from sparkdl_comm.errors import (
    ERRORS_BY_NAME,
    BridgeError,
    DeadlineError,
    ProtocolError,
    RankFailedError,
    RankLostError,
    SparkdlCommError,
)

_LATE = re.compile(r"timed out|operation timeout", re.IGNORECASE)
# Messages of the backends and the kernel about a peer that disconnected.
_GONE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|socket (is )?closed|pair closure"
    r"|nccl communicator was aborted|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)


def is_peer_late(exc: BaseException) -> bool:
    """Return whether an operation timed out waiting for another rank."""
    return isinstance(exc, RuntimeError) and bool(_LATE.search(str(exc)))


def is_peer_failure(exc: BaseException) -> bool:
    """Return whether another rank is late, or has disconnected."""
    if isinstance(exc, DistNetworkError):
        return True
    return is_peer_late(exc) or (isinstance(exc, RuntimeError) and bool(_GONE.search(str(exc))))


#: Packages whose frames lie between the training loop and the user's code.
_LIBRARIES = ("sparkdl_comm", "torch", "pyspark", "py4j", "cloudpickle")
_INSTALLED = ("site-packages", "dist-packages")


def user_traceback(error: BaseException) -> str:
    """Return the text of the traceback, including causes and contexts.

    It keeps the frames of the user's code, and the last frame if it is of another library. An exception without frames
    of the user's code keeps only its last line. If there is no such frame in the whole chain, the text is complete: the
    fault is elsewhere.
    """
    whole = TracebackException.from_exception(error)
    if any(_is_user_code(frame) for each in _chain(whole) for frame in each.stack):
        for each in _chain(whole):
            users = [frame for frame in each.stack if _is_user_code(frame)]
            ends = [
                frame for frame in each.stack[-1:] if users and not _is_user_code(frame) and not _is_own_code(frame)
            ]
            each.stack = StackSummary.from_list(users + ends)
    return "".join(whole.format())


def _chain(error: TracebackException) -> Iterator[TracebackException]:
    """Yield the exception, its causes and its contexts."""
    seen: list[TracebackException | None] = [error]
    while seen:
        each = seen.pop()
        if each is not None:
            yield each
            seen += [each.__cause__, each.__context__]


def _is_own_code(frame: FrameSummary) -> bool:
    return _is_within(frame.filename, str(Path(__file__).parents[1]))


def _is_user_code(frame: FrameSummary) -> bool:
    """Return whether a frame belongs neither to Python, nor to this package, nor to torch or Spark."""
    path = frame.filename
    if path.startswith("<frozen "):
        return False
    if _is_within(path, sysconfig.get_path("stdlib")):
        return any(name in path.split(os.sep) for name in _INSTALLED) and not _is_library_code(path)
    return not _is_library_code(path)


def _is_library_code(path: str) -> bool:
    homes = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    return any(home is not None and _is_within(path, os.path.dirname(home)) for home in homes)


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(folder + os.sep)


#: Upper bound of ``Failure.to_json()``, in bytes.
MAX_JSON = 64 * 1024
MARKER = "SPARKDL-FAILURE "

# Most bytes of JSON for each text, without quotes. Their sum and the rest of the object stay below MAX_JSON.
_BUDGET = {"error": 256, "phase": 128, "message": 12 * 1024, "traceback": 30 * 1024, "log": 20 * 1024}
_MAX_INT = 2**31 - 1


def _json_width(char: str) -> int:
    """Return the bytes that ``char`` takes in ASCII JSON."""
    if char in '"\\\n\r\t\b\f':
        return 2
    if " " <= char <= "~":
        return 1
    return 6 if ord(char) < 0x10000 else 12


def _fitting_length(text: str, budget: int) -> int:
    """Return how many leading characters of ``text`` fit into ``budget`` bytes of JSON."""
    for count, char in enumerate(text):
        budget -= _json_width(char)
        if budget < 0:
            return count
    return len(text)


def _clip(text: str, budget: int) -> str:
    """Return ``text``, with its middle cut out if it takes more than ``budget`` bytes of JSON: the ends say most."""
    # A lone surrogate cannot be encoded, so the receiver could not print the text.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if _fitting_length(text, budget) == len(text):
        return text
    half = (budget - 48) // 2
    head = _fitting_length(text[:half], half)
    tail = _fitting_length(text[: -half - 1 : -1], half)
    return f"{text[:head]}\n[... {len(text) - head - tail} characters cut ...]\n{text[len(text) - tail :]}"


def is_secondary(exc: BaseException) -> bool:
    """Return whether ``exc`` or one of its causes says that another rank failed: a vanished peer, or a time limit."""
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
        if is_peer_failure(cause):
            return True
        cause = cause.__cause__
    return False


def _is_plain(exc: BaseException) -> bool:
    """Return whether the message says all: one of the package's own errors, caused by nothing or by a failed system
    call.
    """
    is_own = isinstance(exc, SparkdlCommError) and exc.is_self_explanatory
    return is_own and (exc.__cause__ is None or isinstance(exc.__cause__, OSError))


@dataclass(frozen=True)
class Failure:
    """Failure of one rank. Texts are cut in the middle at construction, so that the JSON is at most 64 KiB.

    :param rank: rank that the failure is about, not always the rank that reports it.
    :param step: training step. None: before the first step.
    :param error: class name; bare for this package's and builtin classes, else ``module.Class``.
    :param secondary: the reporter believes that another rank's failure caused this one.
    :param log: last lines that the rank printed.
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
        """Return the failure for an exception.

        An exception from another rank (see ``to_exception``) keeps that rank, step, phase and traceback.

        :param secondary: None: ``is_secondary(exc)`` decides.
        """
        kind, traceback, log = type(exc), None, ""
        error = kind.__qualname__
        if ERRORS_BY_NAME.get(error) is not kind and kind.__module__ != "builtins":
            error = f"{kind.__module__}.{error}"
        try:
            message = str(exc)
        except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise; that must not hide the failure
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
        """Return ASCII JSON on one line, at most 64 KiB."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        """Return the failure that :meth:`to_json` wrote.

        :raises ProtocolError: ``text`` is anything else.
        """
        if len(text) > MAX_JSON:
            raise ProtocolError(f"a failure of {len(text)} bytes: more than {MAX_JSON}")
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as exc:
            raise ProtocolError(f"not a failure: {exc}") from exc

    @classmethod
    def from_dict(cls, value: Any) -> Failure:
        """Return the failure from the dict that ``dataclasses.asdict`` made.

        :raises ProtocolError: a name, type or length is wrong.
        """
        if not isinstance(value, dict) or set(value) != set(cls.__dataclass_fields__):
            raise ProtocolError("not a failure: wrong fields")
        for name, limit in _BUDGET.items():
            if not isinstance(value[name], str) or len(value[name]) > limit:
                raise ProtocolError(f"not a failure: {name} is not a string of at most {limit} characters")
        for name in ("rank", "step"):
            number = value[name]
            if name == "step" and number is None:
                continue
            if type(number) is not int or not 0 <= number <= _MAX_INT:
                raise ProtocolError(f"not a failure: {name} is {number!r:.40}")
        if not isinstance(value["secondary"], bool):
            raise ProtocolError("not a failure: secondary is not a boolean")
        return cls(**value)

    def embed(self) -> str:
        """Return one line of ASCII for an exception's message, which ``find`` recognizes."""
        return MARKER + self.to_json()

    @staticmethod
    def find(text: str) -> Failure | None:
        """Return the failure embedded in ``text``, or None. Of several, return the first that is not secondary, else
        the first.

        Spark nests exceptions, repeats their texts and appends stack traces. Truncated or damaged failures are skipped.
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
        """Return a typed error of the package's own class, or RankFailedError for other classes, with the remote
        traceback.
        """
        kind = ERRORS_BY_NAME.get(self.error)
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
