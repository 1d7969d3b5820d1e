"""The one tree of errors that sparkdl_comm raises.

Every class takes the same arguments: a message, and keywords that say where it happened. So each of them can
be rebuilt on another machine from a few strings (see ``sparkdl_comm.gang.failure``), pickled and copied.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question after the known name that is most like ``name``, for the end of a clause; empty if none is like it."""
    match = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {match[0]}?" if match else ""


def _rebuild(cls: type[SparkdlCommError], args: tuple[Any, ...], state: dict[str, Any]) -> SparkdlCommError:
    # Not cls(*args): a class may have required keywords, or compose its message from them.
    # And by hand for what is an OSError too, whose own __new__ comes late in the order of resolution.
    error = OSError.__new__(cls, *args) if issubclass(cls, OSError) else cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SparkdlCommError(Exception):
    """Base of all errors of this package.

    ``rank``, ``step`` and ``phase`` say which rank it is about, at which step, in which phase (None: unknown).
    ``remote_traceback`` is the traceback text of the process where it was raised, None if it was raised here.
    ``log_tail``: the last 100 lines that the rank had printed, empty if unknown.
    ``state_dict``: the trained tensors by name, on the CPU, that ``fit`` had received; None if it had not.
    """

    state_dict: dict[str, Any] | None = None

    #: Whether the message alone says what to change, wherever it was raised, unless code of the user's is behind it.
    explains_itself = False

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
        if self.explains_itself and not self.remote_traceback:
            return text
        if self.remote_traceback:
            text += f"\n\nTraceback of rank {self.rank}:\n{self.remote_traceback}"
        if self.log_tail:
            text += f"\n\nLast lines that rank {self.rank} printed:\n{self.log_tail}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ConfError(SparkdlCommError, ValueError):
    """A setting is wrong; the message names the key to change."""

    explains_itself = True


class InputError(SparkdlCommError, ValueError):
    """Data given to us are wrong: a missing column, a wrong type, nulls, labels that are none of the classes."""

    explains_itself = True


class ModelError(SparkdlCommError, ValueError):
    """The model cannot be used: cannot be shipped, has tensors we cannot send, does not fit its weights."""

    explains_itself = True


class PluginError(SparkdlCommError, RuntimeError):
    """The Spark plugin is not loaded, or is the wrong one."""


class SlotsError(SparkdlCommError, RuntimeError):
    """The cluster cannot run as many workers at once as were asked for."""


class BridgeError(SparkdlCommError, RuntimeError):
    """The bridge between the Python worker and its executor's JVM failed."""


class LabError(SparkdlCommError, RuntimeError):
    """An emulated network could not be made, used or removed."""


class LabUnavailableError(LabError):
    """This machine cannot emulate networks: a tool is missing, or the permission."""


class PlanError(SparkdlCommError, RuntimeError):
    """The plan of a collective is wrong: ranks' programs do not fit together, or would wait for each other."""


class PersistenceError(SparkdlCommError, OSError):
    """A model or checkpoint could not be written or read."""


class NonFiniteLossError(SparkdlCommError, FloatingPointError):
    """The loss became NaN or infinite; ``rank`` and ``step`` say where."""


class CallbackError(SparkdlCommError, RuntimeError):
    """A callback of the user raised; names callback, hook, rank and step, and has the traceback."""


class ResultError(SparkdlCommError, RuntimeError):
    """Training ended, but ``fit`` failed afterwards; ``state_dict`` has the trained tensors."""


class GangError(SparkdlCommError, RuntimeError):
    """The gang of ranks, or the connection to the driver, failed."""


class RankFailedError(GangError):
    """A rank raised an exception that is not one of ours; carries its class, message and traceback text."""

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
    """A rank's process or executor went away without a word; ``rank`` says which."""


class DeadlineError(GangError, TimeoutError):
    """A wait took longer than it may; the message names the conf key that sets how long."""


class AuthenticationError(GangError):
    """The peer does not know the gang's secret, or does not speak our protocol."""


class ProtocolError(GangError):
    """What a member of the gang sent cannot be understood: it runs another version of this package, or has a bug."""


#: Classes that may be rebuilt from a name that came over the network. RankFailedError is not among them: it
#: stands for all classes that are not here.
BY_NAME: dict[str, type[SparkdlCommError]] = {
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
