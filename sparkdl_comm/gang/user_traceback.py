"""Traceback of an exception, reduced to the frames of the user's own code."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

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
