"""Errors that sparkdl_comm raises, as one tree of classes.

Every class takes the same arguments: a message, and keywords for where it happened. So an error can be rebuilt on
another machine from a few strings (see ``sparkdl_comm.gang.failure``), pickled and copied.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name most similar to ``name``, to append to a message. Empty if none is
    similar.
    """
    match = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {match[0]}?" if match else ""


def _rebuild(cls: type[SparkdlCommError], args: tuple[Any, ...], state: dict[str, Any]) -> SparkdlCommError:
    # Not cls(*args): a class may have required keywords, or compose its message from them. OSError must be named
    # explicitly, because its __new__ comes late in the method resolution order.
    error = OSError.__new__(cls, *args) if issubclass(cls, OSError) else cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SparkdlCommError(Exception):
    """Base class of all errors of this package.

    ``rank``, ``step`` and ``phase``: where it happened, None if unknown. ``remote_traceback``: traceback text of the
    process that raised it, None if it was raised here. ``log_tail``: the last 100 lines that the rank printed, empty if
    unknown. ``state_dict``: the trained tensors by name, on the CPU, if ``fit`` had received them, otherwise None.
    """

    state_dict: dict[str, Any] | None = None

    #: True if the message alone says what to change. Then the log of the rank is left out, unless there is a traceback.
    is_self_explanatory = False

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        step: int | None = None,
        phase: str | None = None,
        remote_traceback: str | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank
        self.step = step
        self.phase = phase
        self.remote_traceback = remote_traceback
        self.log_tail = log_tail

    def __str__(self) -> str:
        text = self.message
        if self.is_self_explanatory and not self.remote_traceback:
            return text
        if self.remote_traceback:
            text += f"\n\nTraceback of rank {self.rank}:\n{self.remote_traceback}"
        if self.log_tail:
            text += f"\n\nLast lines that rank {self.rank} printed:\n{self.log_tail}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ConfError(SparkdlCommError, ValueError):
    """Wrong setting. The message names the key to change."""

    is_self_explanatory = True


class InputError(SparkdlCommError, ValueError):
    """Wrong data: a missing column, a wrong type, nulls, labels that are not among the classes."""

    is_self_explanatory = True


class ModelError(SparkdlCommError, ValueError):
    """Unusable model: it cannot be shipped, has tensors that cannot be sent, or does not fit its weights."""

    is_self_explanatory = True


class PluginError(SparkdlCommError, RuntimeError):
    """Spark plugin that is missing, or built for another version."""


class SlotsError(SparkdlCommError, RuntimeError):
    """Too few slots in the cluster to run all workers at once."""


class BridgeError(SparkdlCommError, RuntimeError):
    """Failure of the bridge between the Python worker and its executor's JVM."""


class LabError(SparkdlCommError, RuntimeError):
    """Emulated network that cannot be made, used or removed."""


class LabUnavailableError(LabError):
    """Machine that cannot emulate networks, for lack of a tool or of permission."""


class PlanError(SparkdlCommError, RuntimeError):
    """Wrong plan of a collective: the ranks' programs do not match, or would deadlock."""


class PersistenceError(SparkdlCommError, OSError):
    """Model or checkpoint that cannot be written or read."""


class NonFiniteLossError(SparkdlCommError, FloatingPointError):
    """Loss that became NaN or infinite. ``rank`` and ``step`` say where."""


class CallbackError(SparkdlCommError, RuntimeError):
    """Exception of a user's callback. Names callback, hook, rank and step, and has the traceback."""


class ResultError(SparkdlCommError, RuntimeError):
    """Failure of ``fit`` after training has ended. ``state_dict`` has the trained tensors."""


class GangError(SparkdlCommError, RuntimeError):
    """Failure of the gang of ranks, or of the connection to the driver."""


class RankFailedError(GangError):
    """Exception of a rank that is not a class of this package. Has its class, message and traceback text."""

    def __init__(
        self,
        *,
        rank: int,
        step: int | None,
        phase: str,
        error: str,
        error_message: str,
        remote_traceback: str = "",
        log_tail: str = "",
    ) -> None:
        at = "" if step is None else f" at step {step}"
        super().__init__(
            f"rank {rank} failed in {phase or 'an unknown phase'}{at}: {error}: {error_message}",
            rank=rank,
            step=step,
            phase=phase,
            remote_traceback=remote_traceback,
            log_tail=log_tail,
        )
        self.error = error
        self.error_message = error_message


class RankLostError(GangError):
    """Loss of a rank's process or executor. ``rank`` says which."""


class DeadlineError(GangError, TimeoutError):
    """Wait that took longer than its limit. The message names the key of the limit."""


class AuthenticationError(GangError):
    """Peer that does not know the gang's secret, or does not speak the protocol."""


class ProtocolError(GangError):
    """Malformed message of a gang member, which runs another version of this package, or has a bug."""


#: Classes that may be rebuilt from a name that arrived over the network. RankFailedError is not among them, because it
#: represents all classes that are not listed here.
ERRORS_BY_NAME: dict[str, type[SparkdlCommError]] = {
    cls.__name__: cls
    for cls in (
        SparkdlCommError,
        ConfError,
        InputError,
        ModelError,
        PluginError,
        SlotsError,
        BridgeError,
        LabError,
        LabUnavailableError,
        PlanError,
        PersistenceError,
        NonFiniteLossError,
        CallbackError,
        ResultError,
        GangError,
        RankLostError,
        DeadlineError,
        AuthenticationError,
        ProtocolError,
    )
}
