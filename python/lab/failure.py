"""Excerpt of a failed program's output. The end of a JVM's stack trace does not show its cause."""

from __future__ import annotations

import re

#: A line that names an exception, as JVMs and Python write it: its class, and then a message or nothing.
_NAMED = re.compile(r"(?:Exception|Error)(?::.*)?$")
_CAUSED = "Caused by:"
#: Characters that are shown of the end, and of each line before it.
_TAIL, _LINE = 3000, 500


def excerpt(output: str) -> str:
    """Return the first line that names an exception, the last ``Caused by:``, and the end of an output.

    Lines of the end are not repeated.
    """
    tail = output[-_TAIL:]
    before = output[: len(output) - len(tail)].splitlines()
    first = next((line for line in before if _NAMED.search(line)), None)
    causes = [line for line in before if line.lstrip().startswith(_CAUSED)] if _CAUSED not in tail else []
    shown = [line.strip()[:_LINE] for line in dict.fromkeys([first, *causes[-1:]]) if line is not None]
    return "\n".join([*shown, "...", tail]) if shown else tail
